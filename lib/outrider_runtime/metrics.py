"""Prometheus plumbing: a registry per process, text rendering, and a histogram of little cost."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, disable_created_metrics, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST


def new_registry() -> CollectorRegistry:
    """A registry of its own for one process, without the `_created` twin of every series."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry(auto_describe=True)


def render(registry: CollectorRegistry) -> bytes:
    """The text exposition of all metrics."""
    return generate_latest(registry)


class LoopHistogram(Collector):
    """A histogram without labels that one thread alone adds to, for what happens at every token.

    The library's own takes a lock for each of two numbers and walks over the buckets.

    Args:
        name: of the series.
        documentation: what is observed.
        bounds: the buckets' upper bounds, ascending, without infinity.
    """

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def collect(self) -> Iterator[Metric]:
        """The family."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets, self._sum)
