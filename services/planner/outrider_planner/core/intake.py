"""A report on its way into a worker's state: time credit, class caps, counters that only grow.

Knows what of a report is held against this worker's past. Does not know plans or the store.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite

from outrider_planner.core.bounds import (
    MOST_CREDIT_S,
    BoundedReport,
    ReportContext,
    ReportRejectedError,
    bound_report,
    class_label,
)
from outrider_planner.core.events import PlannerConfig, ReportOutcome
from outrider_planner.core.sums import CellKey
from outrider_planner.core.types import GuardState, StepReports
from outrider_planner.core.worker_state import WorkerState


def take_in(
    worker: WorkerState,
    report: StepReports,
    now_s: float,
    classes: set[str],
    config: PlannerConfig,
    in_full: bool = True,
) -> ReportOutcome:
    """Counts what is believable of a report; ``classes`` are those known of the deployment.

    What is not believable changes nothing: unknown is not zero. ``in_full``: for this worker's
    own statistics too, not for the store alone.
    """
    try:
        bounded = _bounded(worker, report, now_s)
    except ReportRejectedError as error:
        worker.rejected[error.reason] += 1
        return ReportOutcome(Counter({error.reason: 1}))
    bounded = _with_known_classes(bounded, classes, config)
    worker.last_sequence, worker.last_report_s = report.sequence, now_s
    rejected = bounded.rejected
    trips, readmissions = _take_guard(worker, report.guard, rejected)
    clamps = max(report.clamps - worker.clamps, 0)
    dropped = max(report.dropped_rounds - worker.dropped_rounds, 0)
    worker.clamps += clamps
    worker.dropped_rounds += dropped
    if rejected:
        worker.rejected.update(rejected)
    drifts = 0
    if in_full:
        drifts = worker.absorb(bounded, now_s)
    else:
        worker.skim(bounded, now_s)
    return ReportOutcome(rejected, dropped, clamps, trips, drifts, readmissions)


def _bounded(worker: WorkerState, report: StepReports, now_s: float) -> BoundedReport:
    """Rounds may use up the time since the last report, and what earlier ones left over."""
    if report.sequence <= worker.last_sequence:
        raise ReportRejectedError("duplicate")
    least_round_s = worker.costs.least_round_s()
    last_s = worker.joined_s if worker.last_report_s is None else worker.last_report_s
    credit_s = min(worker.credit_s + max(now_s - last_s, 0.0), MOST_CREDIT_S)
    context = ReportContext(
        hello=worker.hello,
        credit_s=credit_s,
        least_round_s=least_round_s,
        table_target_s=worker.costs.table_target_s if worker.costs.has_table else None,
        dropped_rounds=max(report.dropped_rounds - worker.dropped_rounds, 0),
    )
    bounded = bound_report(report, context)
    worker.credit_s = credit_s - len(report.rounds) * least_round_s
    return bounded


def _with_known_classes(
    bounded: BoundedReport, classes: set[str], config: PlannerConfig
) -> BoundedReport:
    cells = []
    for key, counts in bounded.cells:
        label = class_label(key.request_class, classes, config.max_classes - 1)
        classes.add(label)
        band = min(key.context_band, config.max_context_bands - 1)
        cells.append((CellKey(key.drafter, label, band), counts))
    return BoundedReport(bounded.rounds, bounded.timed, tuple(cells), bounded.rejected)


def _take_guard(
    worker: WorkerState, guard: GuardState | None, rejected: Counter[str]
) -> tuple[int, int]:
    """Keeps the guard's state if it is finite; returns trips and re-admissions since the last."""
    if guard is None:
        return 0, 0
    numbers = (
        *(guard.ledger_tokens, guard.threshold_tokens, guard.sigma_tokens),
        *(guard.plain_scale_ratio, guard.lost_tokens),
    )
    if not all(map(isfinite, numbers)):
        rejected["not_finite"] += 1
        return 0, 0
    before, worker.guard = worker.guard or GuardState(), guard
    trips = max(guard.trips - before.trips, 0)
    return trips, max(guard.readmissions - before.readmissions, 0)
