"""What the planner exports to Prometheus.

Knows names, labels and where each number comes from. Labels are the worker's incarnation, the
drafter, and reasons from fixed lists; a worker's series go when the planner forgets it. What is not
known is not exported: no series holds a stand-in or an old value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider_planner.core.cells import forecast_ratio
from outrider_planner.core.events import ReportOutcome
from outrider_planner.core.shadows import Shadow
from outrider_planner.core.weighted import verified_of, weighted_mean
from outrider_planner.core.worker_state import Forecast, WorkerState
from outrider_runtime.metrics import new_registry

_PREFIX = "outrider_planner"
_WAITS_S = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WORKER, _DRAFTER, _POLICY = ("worker",), ("worker", "drafter"), ("worker", "policy")
_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "draft_length": ("Tokens drafted per request at the present load.", _DRAFTER),
    "verify_rows": ("Rows of the target forward at the present load.", _DRAFTER),
    "rate_vs_off_ratio": ("Predicted rate over the rate without drafts.", _DRAFTER),
    "calibration_error_ratio": (
        "Mean distance of predicted from realised acceptance, by score bin.",
        _DRAFTER,
    ),
    "mean_rate_vs_off_ratio": (
        "Predicted rate over the rate without drafts, each drafter by the drafts verified of it.",
        _WORKER,
    ),
    "predicted_accepted_tokens": ("Drafts accepted per round, predicted.", _WORKER),
    "realised_accepted_tokens": ("Drafts accepted per round, realised.", _WORKER),
    "predicted_round_seconds": ("Length of a round, predicted.", _WORKER),
    "measured_round_seconds": ("Length of a round, measured.", _WORKER),
    "predicted_rate_tokens_per_second": ("Predicted rate at the present load.", _WORKER),
    "headroom_ratio": ("What is left of the rate at full load without drafts.", _WORKER),
    "plan_age_seconds": ("Since the worker's plan was last changed.", _WORKER),
    "present_requests": ("Requests decoding at the worker, 0 when idle.", _WORKER),
    "guard_threshold_tokens": ("Loss at which the worker's guard trips.", _WORKER),
    "shadow_rate_tokens_per_second": ("Rate predicted for a shadow policy.", _POLICY),
    "shadow_rate_vs_off_ratio": ("The same over the rate without drafts.", _POLICY),
    "store_up": ("1 while the store serves; 0 before the first contact.", ()),
    "workers": ("Workers with an open stream.", ()),
    "decision_log_written_entries": ("Entries handed to the decision log since the start.", ()),
    "decision_log_lost_entries": ("Entries of the decision log that could not be kept.", ()),
}
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plans_pushed": ("Plans sent to workers.", _WORKER),
    "plans_held": ("Times no plan could be found and the last one held.", ("reason",)),
    "reports_received": ("Step reports received.", _WORKER),
    "reports_rejected": ("Reports, or parts of them, that were not believed.", ("reason",)),
    "reports_dropped": ("Rounds that workers could not report in time.", _WORKER),
    "plan_clamps": ("Plan values workers had to clamp.", _WORKER),
    "guard_trips": ("Times a guard turned drafts off.", _WORKER),
    "guard_readmissions": ("Times a guard let drafts back in.", _WORKER),
    "drift_events": ("Times acceptance left what was believed of it.", _WORKER),
    "store_exchanges": ("Batches sent to the store and scopes read, by result.", ("result",)),
}
_OF_REPORTS = (
    *("reports_received", "reports_dropped", "plan_clamps"),
    *("guard_trips", "guard_readmissions", "drift_events"),
)
_OF_SHADOWS = ("shadow_rate_tokens_per_second", "shadow_rate_vs_off_ratio")


class PlannerMetrics:
    """All series of one planner process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = new_registry()
        self._gauges = {
            name: Gauge(f"{_PREFIX}_{name}", text, labels, registry=self.registry)
            for name, (text, labels) in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"{_PREFIX}_{name}_total", text, labels, registry=self.registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        # By worker, in the order of ``_OF_REPORTS``.
        self._by_worker: dict[str, tuple[Counter, ...]] = {}
        # What is shown of a worker, by name and labels: looking a series up costs more than setting
        # it, and a scrape sets a dozen of every worker.
        self._shown: dict[str, dict[tuple[str, ...], Gauge]] = {}
        self.store_up, self.workers = self._gauges["store_up"], self._gauges["workers"]
        self.plans, self.held = self._counters["plans_pushed"], self._counters["plans_held"]
        self.rejected = self._counters["reports_rejected"]
        self.exchanges = self._counters["store_exchanges"]
        self.report_to_plan = Histogram(
            f"{_PREFIX}_report_to_plan_seconds",
            "From a worker's report until a plan was found that counts it, changed or not.",
            buckets=_WAITS_S,
            registry=self.registry,
        )

    def count(self, incarnation: str, outcome: ReportOutcome) -> None:
        """Counts what a report brought; every counter of a worker is there from its first report.

        Most reports bring nothing but themselves, and looking up a series costs more than adding.
        """
        series = self._by_worker.get(incarnation)
        if series is None:
            series = tuple(self._counters[name].labels(incarnation) for name in _OF_REPORTS)
            self._by_worker[incarnation] = series
        brought = (
            *(1, outcome.dropped_rounds, outcome.clamps),
            *(outcome.guard_trips, outcome.guard_readmissions, outcome.drifts),
        )
        for counter, number in zip(series, brought, strict=True):
            if number:
                counter.inc(number)
        for reason, number in outcome.rejected.items():
            self.rejected.labels(reason).inc(number)

    def refresh(self, incarnation: str, worker: WorkerState, now_s: float) -> None:
        """Sets every gauge of a worker; an idle one has no measured values and no forecast."""
        present, step = worker.requests_at(now_s), worker.step_at(now_s)
        for item in worker.plan.drafters if worker.plan else ():
            draft_tokens = item.draft_tokens[step]
            rows = item.target_rows[step][draft_tokens]
            self._show("draft_length", draft_tokens, incarnation, item.drafter)
            self._show("verify_rows", rows, incarnation, item.drafter)
        ratios = {each.name: _rate_ratio(worker, each.name, step) for each in worker.hello.drafters}
        for name, ratio in ratios.items():
            self._show("rate_vs_off_ratio", ratio, incarnation, name)
            known = worker.evidence.calibrations.get(name)
            error = None if known is None else known.error_after()
            self._show("calibration_error_ratio", error, incarnation, name)
        rate, headroom = _load(worker, present, step)
        forecast, guard = worker.forecast if present else None, worker.guard
        for name, value in (
            ("mean_rate_vs_off_ratio", weighted_mean(ratios, verified_of(worker))),
            ("present_requests", present),
            ("plan_age_seconds", max(now_s - worker.planned_s, 0.0)),
            ("predicted_rate_tokens_per_second", rate),
            ("headroom_ratio", headroom),
            ("guard_threshold_tokens", guard.threshold_tokens if guard else None),
            ("predicted_accepted_tokens", _of(forecast, "predicted_accepted_tokens")),
            ("realised_accepted_tokens", _of(forecast, "realised_accepted_tokens")),
            ("predicted_round_seconds", _of(forecast, "predicted_round_s")),
            ("measured_round_seconds", _of(forecast, "measured_round_s")),
        ):
            self._show(name, value, incarnation)

    def refresh_shadows(self, incarnation: str, shadows: Sequence[Shadow]) -> None:
        """Sets what each shadow predicts; those that are no longer asked for go."""
        found = {item.policy: item.cell for item in shadows}
        before = [key for key in self._shown.get(incarnation, ()) if key[0] in _OF_SHADOWS]
        for policy in {*found, *(key[-1] for key in before)}:
            cell = found.get(policy)
            values = (cell.rate_tokens_per_s, cell.rate_vs_off_ratio) if cell else (None, None)
            for name, value in zip(_OF_SHADOWS, values, strict=True):
                self._show(name, value, incarnation, policy)

    def refresh_log(self, written: int, lost: int) -> None:
        """Sets what became of the decision log's entries."""
        self._gauges["decision_log_written_entries"].set(written)
        self._gauges["decision_log_lost_entries"].set(lost)

    def forget(self, incarnation: str) -> None:
        """Removes a worker's series."""
        self._by_worker.pop(incarnation, None)
        self._shown.pop(incarnation, None)
        for series, kinds in ((self._gauges, _GAUGES), (self._counters, _COUNTERS)):
            for name, (_, labels) in kinds.items():
                if "worker" in labels:
                    series[name].remove_by_labels({"worker": incarnation})

    def _show(self, name: str, value: float | None, *labels: str) -> None:
        """Sets a series, or removes it where the value is not known; a worker's label is first."""
        shown, key = self._shown.setdefault(labels[0], {}), (name, *labels)
        if value is None or not isfinite(value):
            if shown.pop(key, None) is not None:
                self._gauges[name].remove(*labels)
            return
        series = shown.get(key)
        if series is None:
            series = shown[key] = self._gauges[name].labels(*labels)
        series.set(value)


def _of(forecast: Forecast | None, name: str) -> float | None:
    return None if forecast is None else float(getattr(forecast, name))


def _rate_ratio(worker: WorkerState, drafter: str, step: int) -> float | None:
    """Predicted rate over the rate when off, or None where a policy forecasts nothing."""
    if worker.decision is None or worker.cost_model is None:
        return None
    return forecast_ratio(worker.decision, worker.cost_model, drafter, step)


def _load(worker: WorkerState, present: int, step: int) -> tuple[float | None, float | None]:
    """Predicted rate at the present load, and what is left of the rate at full load when off.

    Under load speculation is planned off first, so queues say late that a worker is full. An idle
    worker has all of it left. Drafters that nothing was verified of are left out. None without
    costs, and where a policy drafts but forecasts nothing.
    """
    if worker.decision is None or worker.cost_model is None:
        return None, None
    if not present:
        return None, 1.0
    off = worker.cost_model.off_rate()
    rates = {item.drafter: float(item.rate[step]) for item in worker.decision.drafters}
    drafts = any(item.draft_tokens[step] for item in worker.decision.drafters)
    if drafts and not any(rates.values()):
        return None, None
    rate = weighted_mean(rates, verified_of(worker)) or float(off[step])
    return rate, max(1.0 - rate / float(off.max()), 0.0)
