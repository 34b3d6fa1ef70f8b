"""Metrics that are read at scrape time from the parts that know them."""

import time
from collections.abc import Callable, Iterable

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.metrics import STEM, WorkerMetrics
from outrider_worker.planner_client.client import PlannerLink
from outrider_worker.replica import Replica
from outrider_worker.runner import Runner


def add_live_gauges(
    metrics: WorkerMetrics,
    replica: Replica,
    plans: PlanBook,
    guard: Guard,
    link: PlannerLink,
    runner: Runner,
) -> None:
    """Values that are read at scrape time from the parts that know them."""
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "requests_running": ("Requests admitted.", replica.running_requests),
        "requests_waiting": ("Requests in the waiting line.", replica.waiting_requests),
        "kv_usage_ratio": (
            "KV slots that requests hold, of all.",
            lambda: replica.kv_used_tokens() / replica.kv_capacity_tokens,
        ),
        "ready": ("1 while it takes requests.", lambda: not replica.not_ready_reason()),
        "plan_version": (
            "Plan in force; 0 = none.",
            lambda: plans.in_force(time.monotonic()).version,
        ),
        "plan_age_seconds": (
            "Since the plan was last renewed.",
            lambda: plans.age_s(time.monotonic()),
        ),
    }
    for name, (text, read) in gauges.items():
        Gauge(f"{STEM}_{name}", text, registry=metrics.registry).set_function(read)
    metrics.registry.register(_GuardCollector(guard))
    metrics.registry.register(_MemoryCollector(replica))
    metrics.registry.register(_GraphCollector(runner))
    metrics.registry.register(_PlannerCollector(plans, link))


def add_info(metrics: WorkerMetrics, incarnation: str, deployment: str, model: str) -> None:
    """One series that is always 1, and says by its labels who this worker is.

    Prometheus adds the `instance`, so a join over `worker` names the planner's series, which know
    incarnations, as the worker's own are named.
    """
    text = "Always 1: this worker as planners call it, its deployment and its model."
    labels = ("worker", "deployment", "model")
    info = Gauge(f"{STEM}_info", text, labels, registry=metrics.registry)
    info.labels(incarnation, deployment, model).set(1)


class _PlannerCollector(Collector):
    """How the conversation with the planner is going."""

    def __init__(self, plans: PlanBook, link: PlannerLink) -> None:
        self._plans = plans
        self._link = link

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            f"{STEM}_planner_connected", "1 while a stream is open.", float(self._link.connected)
        )
        counters = {
            "planner_connections": ("Streams opened.", self._link.connections),
            "plans_applied": ("Plans put in force.", self._link.plans_applied),
            "plans_malformed": ("Plans ignored: malformed.", self._link.plans_malformed),
            "plans_refused": ("Plans ignored: old stream or version.", self._plans.refused_plans),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"{STEM}_{name}", text, value=value)


class _GuardCollector(Collector):
    """The guard's ledger: the bound on what speculation may cost, and how near it is."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def collect(self) -> Iterable[Metric]:
        state = self._guard.snapshot()
        gauges = {
            "tripped": ("1 while speculation is off by the guard.", float(state.tripped)),
            "ledger_tokens": ("Tokens lost against off, by request.", state.ledger_tokens),
            "threshold_tokens": ("Loss at which the guard acts.", state.threshold_tokens),
            "sigma_tokens": ("Spread of the ledger's increment.", state.sigma_tokens),
            "plain_scale_ratio": ("Plain rounds over the cost table.", state.plain_scale_ratio),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"{STEM}_guard_{name}", text, value=value)
        counters = {
            "trips": ("Times the guard acted.", state.trips),
            "readmissions": ("Times speculation was let back in.", state.readmissions),
            "lost_tokens": ("Ledger at the trips, summed: the bound kept.", state.lost_tokens),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"{STEM}_guard_{name}", text, value=value)


class _MemoryCollector(Collector):
    """How the KV pool is shared out, and what giving way and looking up came to."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def collect(self) -> Iterable[Metric]:
        pages, scheduler = self._replica.pages, self._replica.scheduler
        cached = pages.cached_pages * pages.page_tokens
        yield GaugeMetricFamily(
            f"{STEM}_prefix_cache_tokens", "Slots that only the prefix cache keeps.", cached
        )
        counts = pages.cache.counts
        counters = {
            "preemptions": ("Requests that had to give way.", scheduler.preemptions),
            "prefix_cache_lookup_tokens": ("Tokens looked up.", counts.looked_up_tokens),
            "prefix_cache_hit_tokens": ("Tokens found.", counts.hit_tokens),
            "prefix_cache_cut_tokens": (
                "Tokens found and computed again: the drafter lacked them.",
                counts.cut_tokens,
            ),
            "prefix_cache_evicted_pages": ("Pages given away.", counts.evicted_pages),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"{STEM}_{name}", text, value=value)


class _GraphCollector(Collector):
    """Rounds that no captured graph served, by row bucket: each was slower than it had to be."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            f"{STEM}_graph_fallbacks", "Rounds launched without a graph.", labels=["rows"]
        )
        for rows, count in sorted(dict(self._runner.graph_fallbacks).items()):
            family.add_metric([str(rows)], count)
        yield family
