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

# Buckets fit for language models: the client library's defaults stop at 10 s and start at 5 ms.
TIME_TO_FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0),
)
INTER_TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04),
    *(0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0),
)


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
