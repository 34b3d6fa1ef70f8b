"""HTTP in one place: an address that is bound before anything starts, and a server that is quiet.

Knows no routes. Needs uvicorn, which only services with an HTTP side install; nothing else of this
library imports this module.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

_BACKLOG = 2048
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def listen(host: str, port: int, send_buffer_bytes: int | None = None) -> socket.socket:
    """A listening socket, so that a bad address shows at once; port 0 takes a free one.

    `send_buffer_bytes` bounds what the kernel keeps of each connection for a peer that does not
    read; left alone, that grows to megabytes.

    Raises:
        OSError: the port is taken or the host is not one of this machine's.
    """
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    if send_buffer_bytes is not None:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    # Made anew so that it knows its protocol: asyncio sends small writes at once (TCP_NODELAY) only
    # on sockets that say TCP, and without that an answer can wait 40 ms for the client's kernel.
    return socket.socket(fileno=bound.detach())


def quiet_server(
    app: Callable[..., Any], max_head_bytes: int | None = None, **options: Any
) -> uvicorn.Server:
    """A server for an ASGI application that sets up no logs and leaves signals to its process.

    Args:
        app: the application.
        max_head_bytes: a request's line and headers, of which an application only hears when they
            are complete; None for no limit. Needs httptools.
        options: of `uvicorn.Config`.
    """
    if max_head_bytes is not None:
        options["http"] = _bounded_head(max_head_bytes)
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, **options)
    return _QuietServer(config)


def _bounded_head(limit_bytes: int) -> type[asyncio.Protocol]:
    """A protocol that ends connections whose request does not get to its body within a limit."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class BoundedHead(HttpToolsProtocol):
        _head_bytes = 0
        _in_head = True

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._head_bytes += len(data)
            if self._in_head and self._head_bytes > limit_bytes and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

        def on_message_begin(self) -> None:
            self._head_bytes, self._in_head = 0, True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

    return BoundedHead


class _QuietServer(uvicorn.Server):
    """Its own signal handling would cut off running requests before the process can drain them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
