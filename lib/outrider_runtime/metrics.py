"""Prometheus plumbing: a registry per process, text rendering, and a side port to serve it."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST


def new_registry() -> CollectorRegistry:
    """A registry of its own for one process, without the `_created` twin of every series."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry(auto_describe=True)


def render(registry: CollectorRegistry) -> bytes:
    """The text exposition of all metrics."""
    return generate_latest(registry)


@dataclass(frozen=True)
class MetricsServer:
    """A running side port; `close` ends it."""

    port: int
    close: Callable[[], None]


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve `/metrics` from a daemon thread; port 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """
    server, thread = start_http_server(port, addr=host, registry=registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    return MetricsServer(server.server_port, close)
