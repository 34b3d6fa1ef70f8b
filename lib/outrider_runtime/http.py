"""HTTP in one place: an address that is bound before anything starts, and a server that is quiet.

Knows no routes. Needs uvicorn, which only services with an HTTP side install; nothing else of this
library imports this module.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a bad address shows at once; port 0 takes a free one.

    Raises:
        OSError: the port is taken or the host is not one of this machine's.
    """
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    # Made anew so that it knows its protocol: asyncio sends small writes at once (TCP_NODELAY) only
    # on sockets that say TCP, and without that an answer can wait 40 ms for the client's kernel.
    return socket.socket(fileno=bound.detach())


def quiet_server(app: Callable[..., Any], **options: Any) -> uvicorn.Server:
    """A server for an ASGI application that sets up no logs and leaves signals to its process.

    Args:
        app: the application.
        options: of `uvicorn.Config`.
    """
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, **options)
    return _QuietServer(config)


class _QuietServer(uvicorn.Server):
    """Its own signal handling would cut off running requests before the process can drain them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
