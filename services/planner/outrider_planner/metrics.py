"""What the planner exports to Prometheus.

Knows names, labels and where each number comes from. Labels are the worker's incarnation, the
drafter, and reasons from fixed lists; a worker's series go when the planner forgets it.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

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
        self.store_up = Gauge(
            f"{_PREFIX}_store_up", "1 while the store answers.", registry=self.registry
        )
        self.workers = Gauge(
            f"{_PREFIX}_workers", "Workers with an open stream.", registry=self.registry
        )
        self.plans = self._counter("plans_pushed", "Plans sent to workers.", by_worker)
        self.reports = self._counter("reports_received", "Step reports received.", by_worker)
        self.rejected = self._counter(
            "reports_rejected", "Reports, or parts of them, that were not believed.", ("reason",)
        )
        self.dropped = self._counter(
            "reports_dropped", "Rounds that workers could not report in time.", by_worker
        )
        self.clamps = self._counter("plan_clamps", "Plan values workers had to clamp.", by_worker)
        self.trips = self._counter("guard_trips", "Times a guard turned drafts off.", by_worker)
        self.flushes = self._counter("store_flushes", "Batches sent to the store.", ("result",))

    def refresh(self, incarnation: str, worker: WorkerState, now_s: float) -> None:
        """Sets every gauge of a worker, in every mode, so that none keeps an old value."""
        self._plan_age.labels(incarnation).set(max(now_s - worker.planned_s, 0.0))
        plan = worker.plan
        step = worker.present_step
        for item in plan.drafters if plan else ():
            draft_tokens = item.draft_tokens[step]
            self._draft_length.labels(incarnation, item.drafter).set(draft_tokens)
            rows = item.target_rows[step][draft_tokens]
            self._verify_rows.labels(incarnation, item.drafter).set(rows)
        self._refresh_rates(incarnation, worker, step)
        forecast = worker.forecast
        if forecast is not None:
            self._accepted["predicted"].labels(incarnation).set(forecast.predicted_accepted_tokens)
            self._accepted["realised"].labels(incarnation).set(forecast.realised_accepted_tokens)
            self._round["predicted"].labels(incarnation).set(forecast.predicted_round_s)
            self._round["measured"].labels(incarnation).set(forecast.measured_round_s)

    def _refresh_rates(self, incarnation: str, worker: WorkerState, step: int) -> None:
        if worker.decision is None or worker.cost_model is None:
            return
        off = float(worker.cost_model.off_rate()[step])
        for item in worker.decision.drafters:
            predicted = float(item.rate[step]) or off
            self._rate_ratio.labels(incarnation, item.drafter).set(predicted / off)

    def forget(self, incarnation: str) -> None:
        """Removes a worker's series."""
        families = (
            *(self._draft_length, self._verify_rows, self._rate_ratio, self._plan_age),
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
