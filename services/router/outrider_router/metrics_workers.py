"""The router's series about each of its workers, read when asked for: workers come and go."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from outrider_router.routing.fleet import Worker
from outrider_router.routing.registry import Registry

_Reader = Callable[[Worker], float]


def _is_up(worker: Worker) -> float:
    return float(worker.trouble is None)


def _in_flight(worker: Worker) -> float:
    return worker.in_flight


def _failures(worker: Worker) -> float:
    return worker.breaker.failures


_SERIES: tuple[tuple[str, str, _Reader], ...] = (
    ("up", "1 while the worker is connected and ready.", _is_up),
    ("choices_in_flight", "Choices that this router has on the worker.", _in_flight),
    ("consecutive_failures", "Failures of the worker since its last success.", _failures),
)


class WorkerSeries(Collector):
    """Gauges with the label `worker`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family per series."""
        workers = list(self._registry.workers.items())
        for name, text, read in _SERIES:
            family = GaugeMetricFamily(f"outrider_router_worker_{name}", text, labels=["worker"])
            for address, worker in workers:
                family.add_metric([address], read(worker))
            yield family
