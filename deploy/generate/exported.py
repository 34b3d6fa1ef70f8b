"""What the services export: every metric's name, type, labels and text, from their own registries.

Knows how each service fills its registry. Nothing is served and nothing runs: where a collector
reads from a part of its service, a stand-in answers, and values are never looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from outrider_planner.metrics import PlannerMetrics
from outrider_router.app import build_state
from outrider_router.metrics_alias import VllmAlias
from outrider_router.settings import RouterSettings
from outrider_runtime.metrics import new_registry
from outrider_worker.live_metrics import add_info, add_live_gauges
from outrider_worker.metrics import WorkerMetrics

_MAX_DRAFT_TOKENS = 8


@dataclass(frozen=True)
class Exported:
    """A metric as its samples are called: a counter's name ends in `_total`.

    Attributes:
        name: without `_bucket`, `_sum` and `_count` of a histogram.
        kind: `counter`, `gauge` or `histogram`.
        labels: in the service's order, without a histogram's `le`.
        text: the help text.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> Mapping[str, frozenset[str]]:
        """Labels by the name of each of its series."""
        own = frozenset(self.labels)
        if self.kind != "histogram":
            return {self.name: own}
        parts = {"bucket": own | {"le"}, "sum": own, "count": own}
        return {f"{self.name}_{part}": labels for part, labels in parts.items()}


def exported_metrics() -> Mapping[str, tuple[Exported, ...]]:
    """By service, in the order of the service's code; `vllm` are the router's other names."""
    router = build_state(RouterSettings(workers=("worker:7080",)))
    router.text_threads.shutdown()
    worker = WorkerMetrics(MagicMock(), _MAX_DRAFT_TOKENS)
    add_info(worker, "worker", "deployment", "model")
    add_live_gauges(worker, *(MagicMock() for _ in range(5)))
    alias = new_registry()
    alias.register(VllmAlias(router.series, router.registry))
    registries = {
        "router": router.series,
        "planner": PlannerMetrics().registry,
        "worker": worker.registry,
        "vllm": alias,
    }
    return {service: tuple(_metrics(registry)) for service, registry in registries.items()}


def exported_series() -> Mapping[str, frozenset[str]]:
    """Labels by the name of the series (`…_total`, `…_bucket`), of all three services."""
    metrics = exported_metrics()
    own = (metric for service in ("router", "planner", "worker") for metric in metrics[service])
    return {name: labels for metric in own for name, labels in metric.series.items()}


def _metrics(registry: CollectorRegistry) -> Iterator[Exported]:
    for collector in registry._collector_to_names:
        for family in collector.collect():
            ending = "_total" if family.type == "counter" else ""
            labels = _labels(collector, family)
            yield Exported(family.name + ending, family.type, labels, family.documentation)


def _labels(collector: Collector, family: Metric) -> tuple[str, ...]:
    """Declared by the collector or by the family it makes; else those that its samples carry."""
    for declared in (collector, family):
        if (names := getattr(declared, "_labelnames", None)) is not None:
            return tuple(names)
    carried = {label: None for sample in family.samples for label in sample.labels}
    return tuple(label for label in carried if label != "le")
