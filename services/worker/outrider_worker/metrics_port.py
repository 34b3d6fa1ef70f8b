"""The side port that serves one registry's metrics: a worker has no other HTTP.

Each connection is a thread, so each is ended in time, whatever its client does or does not do.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

CONNECTION_LIMIT_S = 10.0


@dataclass(frozen=True)
class MetricsServer:
    """A running side port; `close` ends it."""

    port: int
    close: Callable[[], None]


def serve_metrics(
    registry: CollectorRegistry, host: str, port: int, limit_s: float = CONNECTION_LIMIT_S
) -> MetricsServer:
    """Serve `/metrics` from a daemon thread; port 0 takes a free one.

    `limit_s`: time for a whole connection, which is one question and its answer.

    Raises:
        OSError: the port is taken, or the host is not one of this machine's.
    """
    server = _Server((host, port), limit_s)
    server.set_app(_at_their_path(make_wsgi_app(registry)))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    return MetricsServer(server.server_port, close)


def _at_their_path(metrics: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The library's application answers at any path; ours is told at one, as everywhere else."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)
        start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"the metrics are at /metrics\n"]

    return answer


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line each."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], limit_s: float) -> None:
        self._limit_s = limit_s
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """One connection, from its own thread."""
        ending = threading.Timer(self._limit_s, _end, (request,))
        ending.daemon = True
        ending.start()
        try:
            super().finish_request(request, client_address)
        finally:
            ending.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its client's matter."""


def _end(connection: socket) -> None:
    """Whoever reads from it or writes to it goes on with an error."""
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)
