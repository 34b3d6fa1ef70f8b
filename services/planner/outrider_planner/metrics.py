"""What the planner exports to Prometheus.

Knows names, labels and where each number comes from. Labels are the worker's incarnation, the
drafter, and reasons from fixed lists; a worker's series go when the planner forgets it. What is not
known is not exported: no series holds a stand-in or an old value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from prometheus_client import CollectorRegistry, Counter, Gauge

from outrider_planner.core.events import ReportOutcome
from outrider_planner.core.shadows import Shadow
from outrider_planner.core.worker_state import WorkerState
from outrider_runtime.metrics import new_registry

_PREFIX = "outrider_planner"


class PlannerMetrics:
    """All series of one planner process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = new_registry()
        by_drafter, by_worker = ("worker", "drafter"), ("worker",)
        self._draft_length = self._gauge(
            "draft_length", "Tokens drafted per request at the present load.", by_drafter
        )
        self._verify_rows = self._gauge(
            "verify_rows", "Rows of the target forward at the present load.", by_drafter
        )
        self._rate_ratio = self._gauge(
            "rate_vs_off_ratio", "Predicted rate over the rate without drafts.", by_drafter
        )
        self._headroom = self._gauge(
            "headroom_ratio",
            "What is left of the rate at full load without drafts.",
            by_worker,
        )
        self._rate = self._gauge(
            "predicted_rate_tokens_per_second", "Predicted rate at the present load.", by_worker
        )
        by_policy = ("worker", "policy")
        self._shadow_rate = self._gauge(
            "shadow_rate_tokens_per_second", "Rate predicted for a shadow policy.", by_policy
        )
        self._shadow_ratio = self._gauge(
            "shadow_rate_vs_off_ratio", "The same over the rate without drafts.", by_policy
        )
        self._guard_threshold = self._gauge(
            "guard_threshold_tokens", "Loss at which the worker's guard trips.", by_worker
        )
        self._accepted = {
            kind: self._gauge(
                f"{kind}_accepted_tokens", f"Drafts accepted per round, {kind}.", by_worker
            )
            for kind in ("predicted", "realised")
        }
        self._round = {
            kind: self._gauge(f"{kind}_round_seconds", f"Length of a round, {kind}.", by_worker)
            for kind in ("predicted", "measured")
        }
        self._plan_age = self._gauge(
            "plan_age_seconds", "Since the worker's plan was last changed.", by_worker
        )
        self._present_requests = self._gauge(
            "present_requests", "Requests decoding at the worker, 0 when idle.", by_worker
        )
        self.store_up = Gauge(
            f"{_PREFIX}_store_up",
            "1 while the store serves; 0 before the first contact.",
            registry=self.registry,
        )
        self.workers = Gauge(
            f"{_PREFIX}_workers", "Workers with an open stream.", registry=self.registry
        )
        self.plans = self._counter("plans_pushed", "Plans sent to workers.", by_worker)
        self.held = self._counter(
            "plans_held", "Times no plan could be found and the last one held.", ("reason",)
        )
        self.reports = self._counter("reports_received", "Step reports received.", by_worker)
        self.rejected = self._counter(
            "reports_rejected", "Reports, or parts of them, that were not believed.", ("reason",)
        )
        self.dropped = self._counter(
            "reports_dropped", "Rounds that workers could not report in time.", by_worker
        )
        self.clamps = self._counter("plan_clamps", "Plan values workers had to clamp.", by_worker)
        self.trips = self._counter("guard_trips", "Times a guard turned drafts off.", by_worker)
        self.drifts = self._counter(
            "drift_events",
            "Times acceptance left what was believed of it.",
            by_worker,
        )
        self.readmissions = self._counter(
            "guard_readmissions", "Times a guard let drafts back in.", by_worker
        )
        self._log_entries = {
            kind: Gauge(f"{_PREFIX}_decision_log_{kind}_entries", text, registry=self.registry)
            for kind, text in (
                ("written", "Entries handed to the decision log since the start."),
                ("lost", "Entries of the decision log that could not be kept."),
            )
        }
        self.exchanges = self._counter(
            "store_exchanges", "Batches sent to the store and scopes read, by result.", ("result",)
        )

    def count(self, incarnation: str, outcome: ReportOutcome) -> None:
        """Counts what a report brought."""
        self.reports.labels(incarnation).inc()
        self.dropped.labels(incarnation).inc(outcome.dropped_rounds)
        self.clamps.labels(incarnation).inc(outcome.clamps)
        self.trips.labels(incarnation).inc(outcome.guard_trips)
        self.readmissions.labels(incarnation).inc(outcome.guard_readmissions)
        self.drifts.labels(incarnation).inc(outcome.drift_events)
        for reason, number in outcome.rejected.items():
            self.rejected.labels(reason).inc(number)

    def refresh(self, incarnation: str, worker: WorkerState, now_s: float) -> None:
        """Sets every gauge of a worker; an idle one has no measured values and no forecast."""
        present, step = worker.requests_at(now_s), worker.step_at(now_s)
        self._present_requests.labels(incarnation).set(present)
        self._plan_age.labels(incarnation).set(max(now_s - worker.planned_s, 0.0))
        for item in worker.plan.drafters if worker.plan else ():
            labels, draft_tokens = (incarnation, item.drafter), item.draft_tokens[step]
            self._draft_length.labels(*labels).set(draft_tokens)
            self._verify_rows.labels(*labels).set(item.target_rows[step][draft_tokens])
        for traits in worker.hello.drafters:
            ratio = _rate_ratio(worker, traits.name, step)
            _show(self._rate_ratio, (incarnation, traits.name), ratio)
        rate, headroom = _load(worker, present, step)
        _show(self._rate, (incarnation,), rate)
        _show(self._headroom, (incarnation,), headroom)
        threshold = worker.guard.threshold_tokens if worker.guard else None
        _show(self._guard_threshold, (incarnation,), threshold)
        forecast = worker.forecast if present else None
        for gauge, name in (
            (self._accepted["predicted"], "predicted_accepted_tokens"),
            (self._accepted["realised"], "realised_accepted_tokens"),
            (self._round["predicted"], "predicted_round_s"),
            (self._round["measured"], "measured_round_s"),
        ):
            _show(gauge, (incarnation,), None if forecast is None else getattr(forecast, name))

    def refresh_shadows(self, incarnation: str, shadows: Sequence[Shadow]) -> None:
        """Sets what each shadow predicts; those that are no longer asked for go."""
        for gauge in (self._shadow_rate, self._shadow_ratio):
            gauge.remove_by_labels({"worker": incarnation})
        for item in shadows:
            if item.cell is not None:
                labels = (incarnation, item.policy)
                self._shadow_rate.labels(*labels).set(item.cell.rate_tokens_per_s)
                self._shadow_ratio.labels(*labels).set(item.cell.rate_vs_off_ratio)

    def refresh_log(self, written: int, lost: int) -> None:
        """Sets what became of the decision log's entries."""
        self._log_entries["written"].set(written)
        self._log_entries["lost"].set(lost)

    def forget(self, incarnation: str) -> None:
        """Removes a worker's series."""
        families = (
            *(self._draft_length, self._verify_rows, self._rate_ratio, self._plan_age),
            *(self._present_requests, self._headroom, self._rate, self._guard_threshold),
            *(self._shadow_rate, self._shadow_ratio, self.readmissions, self.drifts),
            *self._accepted.values(),
            *self._round.values(),
            *(self.plans, self.reports, self.dropped, self.clamps, self.trips),
        )
        for family in families:
            family.remove_by_labels({"worker": incarnation})

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"{_PREFIX}_{name}_total", text, labels, registry=self.registry)


def _rate_ratio(worker: WorkerState, drafter: str, step: int) -> float | None:
    """Predicted rate over the rate when off, or None where a policy forecasts nothing."""
    if worker.decision is None or worker.cost_model is None:
        return None
    off = float(worker.cost_model.off_rate()[step])
    rates = [float(i.rate[step]) for i in worker.decision.drafters if i.drafter == drafter]
    return rates[0] / off if rates and rates[0] > 0 and off > 0 else None


def _load(worker: WorkerState, present: int, step: int) -> tuple[float | None, float | None]:
    """Predicted rate at the present load, and what is left of the rate at full load when off.

    Under load speculation is planned off first, so queues say late that a worker is full. An idle
    worker has all of it left. Both are None without costs.
    """
    if worker.decision is None or worker.cost_model is None:
        return None, None
    off = worker.cost_model.off_rate()
    if not present:
        return None, 1.0
    rates = [float(item.rate[step]) for item in worker.decision.drafters]
    rate = max(float(off[step]), *rates)
    return rate, max(1.0 - rate / float(off.max()), 0.0)


def _show(gauge: Gauge, labels: tuple[str, ...], value: float | None) -> None:
    """Sets a series, or removes it where the value is not known."""
    if value is None or not isfinite(value):
        gauge.remove(*labels)
    else:
        gauge.labels(*labels).set(value)
