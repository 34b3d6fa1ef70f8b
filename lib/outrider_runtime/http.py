"""HTTP in one place: an address that is bound before anything starts, and a server that is quiet.

Knows no routes. Needs uvicorn and httptools, which only services with an HTTP side install; nothing
else of this library imports this module.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from outrider_runtime.http_protocol import BoundedProtocol, ErrorBody

MAX_HEAD_BYTES = 64 * 1024
HEAD_LIMIT_S = 20.0
_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep unused connections, mostly 60 s: whoever closes first while
the other one sends a request makes that fail."""


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


def _error_body(status: int, message: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": message}}


def quiet_server(
    app: Callable[..., Any],
    max_head_bytes: int = MAX_HEAD_BYTES,
    head_limit_s: float = HEAD_LIMIT_S,
    error_body: ErrorBody = _error_body,
    **options: Any,
) -> uvicorn.Server:
    """A server for an ASGI application that sets up no logs and leaves signals to its process.

    Args:
        app: the application.
        max_head_bytes: of a request's line and headers, and of what surrounds a body; an
            application only hears of those that are complete.
        head_limit_s: time that a client has for a head, once it has connected or begun one.
        error_body: the application's form of errors, for those that it gets to see nothing of.
        options: of `uvicorn.Config`.
    """
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedProtocol, max_head_bytes, head_limit_s, error_body)),
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        server_header=False,
        **options,
    )
    return _QuietServer(config)


class _QuietServer(uvicorn.Server):
    """Its own signal handling would cut off running requests before the process can drain them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
