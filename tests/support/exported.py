"""What the services export: every series' name with its labels, from the code's own registries."""

from collections.abc import Mapping
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry

from outrider_planner.metrics import PlannerMetrics
from outrider_router.app import build_state
from outrider_router.settings import RouterSettings
from outrider_worker.live_metrics import add_live_gauges
from outrider_worker.metrics import WorkerMetrics


def exported_series() -> Mapping[str, frozenset[str]]:
    """Labels by the name of the series (`…_total`, `…_bucket`), for all three services."""
    router = build_state(RouterSettings(workers=("worker:7080",)))
    router.text_threads.shutdown()
    worker = WorkerMetrics(MagicMock(), 8)
    add_live_gauges(worker, *(MagicMock() for _ in range(5)))
    registries = (router.series, PlannerMetrics().registry, worker.registry)
    return {name: labels for each in registries for name, labels in _series(each).items()}


def _series(registry: CollectorRegistry) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for name, collector in registry._names_to_collectors.items():
        own = getattr(collector, "_labelnames", None)
        if own is None:  # it makes its families when it is asked
            own = {
                label
                for family in collector.collect()
                if name.startswith(family.name)
                for label in getattr(family, "_labelnames", ())
            }
        if name.endswith("_created"):
            continue
        found[name] = frozenset(own) | ({"le"} if name.endswith("_bucket") else set())
    return found
