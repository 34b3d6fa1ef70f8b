"""The router's series under the names that vLLM gives them, for dashboards and scalers made for it.

Nothing is counted twice: samples of our own series are shown under other names. What has no equal
here is left out. Sums over workers stand for one engine, `engine="0"`.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from outrider_router.routing.registry import Registry
from outrider_router.types import WorkerStatus

_OWN, _THEIRS = "outrider_router_", "vllm:"
_RENAMED = {
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "round_gap_seconds": "inter_token_latency_seconds",
    "request_time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "request_queue_time_seconds": "request_queue_time_seconds",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "verify_steps": "spec_decode_num_drafts",
    "verified_draft_tokens": "spec_decode_num_draft_tokens",
    "accepted_draft_tokens": "spec_decode_num_accepted_tokens",
}
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}


class VllmAlias(Collector):
    """Shows `series` and the load of the registry's workers."""

    def __init__(self, series: CollectorRegistry, registry: Registry) -> None:
        self._series = series
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """The families, labelled with the model where there is only one."""
        names = {model.name for model in self._registry.models()}
        labels = {"model_name": names.pop() if len(names) == 1 else "", "engine": "0"}
        waiting = 0.0
        for family in self._series.collect():
            own = family.name.removeprefix(_OWN)
            if own in _RENAMED:
                yield _renamed(family, _THEIRS + _RENAMED[own], labels)
            elif own == "requests":
                yield _by_reason(family, labels)
            elif own == "requests_waiting":
                waiting = family.samples[0].value
        yield from self._load(waiting, labels)

    def _load(self, waiting: float, labels: dict[str, str]) -> Iterator[Metric]:
        workers = self._registry.workers.values()
        statuses = [w.client.status for w in workers if w.trouble is None and w.client.status]
        gauges = {
            "num_requests_running": float(sum(s.running_requests for s in statuses)),
            "num_requests_waiting": waiting + sum(s.waiting_requests for s in statuses),
            "kv_cache_usage_perc": _kv_usage(statuses),
        }
        for name, value in gauges.items():
            family = GaugeMetricFamily(_THEIRS + name, f"As vLLM's {name}.", labels=list(labels))
            family.add_metric(list(labels.values()), value)
            yield family


def _kv_usage(statuses: list[WorkerStatus]) -> float:
    capacity = sum(status.kv_capacity_tokens for status in statuses)
    return sum(status.kv_used_tokens for status in statuses) / capacity if capacity else 0.0


def _renamed(family: Metric, name: str, labels: dict[str, str]) -> Metric:
    shown = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        shown.add_sample(name + suffix, {**labels, **sample.labels}, sample.value)
    return shown


def _by_reason(family: Metric, labels: dict[str, str]) -> Metric:
    name = _THEIRS + "request_success"
    shown = Metric(name, family.documentation, "counter")
    for sample in family.samples:
        reason = _REASONS.get(sample.labels["outcome"])
        if reason:
            reasoned = {**labels, "finished_reason": reason}
            shown.add_sample(f"{name}_total", reasoned, sample.value)
    return shown
