"""Between the engine's values and the planner's wire messages."""

import math
from collections.abc import Iterable, Sequence

from outrider.common.v1 import common_pb2 as common
from outrider.planner.v1 import planner_pb2 as wire
from outrider_worker.engine.costs import CostCurve, CostTable, DraftCost
from outrider_worker.engine.guard import GuardSnapshot
from outrider_worker.engine.plans import DrafterBudget, GuardThresholds, Plan, Probe, ScoreMap
from outrider_worker.engine.records import LaunchMode, RoundRecord
from outrider_worker.engine.tally import AcceptanceCell, CellKey, tally

_MODES = {
    LaunchMode.AHEAD: common.LAUNCH_MODE_AHEAD,
    LaunchMode.LATE_MASK: common.LAUNCH_MODE_LATE_MASK,
    LaunchMode.IN_STEP: common.LAUNCH_MODE_IN_STEP,
}


def micros(seconds: float) -> int:
    """Whole microseconds, never negative."""
    return max(0, round(seconds * 1e6))


def costs_to_wire(costs: CostTable) -> wire.CostTable:
    drafters = [
        wire.DrafterCosts(
            drafter=drafter.drafter,
            feed=[_curve(curve) for curve in drafter.feed],
            draft=[_grid(context, points) for context, points in drafter.draft],
        )
        for drafter in costs.drafters
    ]
    return wire.CostTable(target=[_curve(curve) for curve in costs.target], drafters=drafters)


def _curve(curve: CostCurve) -> wire.CostCurve:
    return wire.CostCurve(
        context_tokens=curve.context_tokens,
        rows=curve.rows,
        median_us=[micros(timing.median_s) for timing in curve.timings],
        spread_us=[micros(timing.spread_s) for timing in curve.timings],
        samples=[timing.samples for timing in curve.timings],
    )


def _grid(context_tokens: int, points: Sequence[DraftCost]) -> wire.DraftCostGrid:
    return wire.DraftCostGrid(
        context_tokens=context_tokens,
        requests=[point.requests for point in points],
        draft_tokens=[point.draft_tokens for point in points],
        median_us=[micros(point.timing.median_s) for point in points],
        spread_us=[micros(point.timing.spread_s) for point in points],
        samples=[point.timing.samples for point in points],
    )


def reports_to_wire(
    sequence: int,
    records: Iterable[RoundRecord],
    guard: GuardSnapshot,
    clamps: int,
    dropped_rounds: int,
) -> wire.StepReports:
    """One message for all rounds since the last one.

    Steps without a round are in no column; drafts of requests that ended in them are in the cells.
    """
    everything = list(records)
    rounds = [record for record in everything if record.requests]
    times = [record.times for record in rounds]
    return wire.StepReports(
        sequence=sequence,
        round=[record.round for record in rounds],
        requests=[record.requests for record in rounds],
        carried_draft_tokens=[record.carried_draft_tokens for record in rounds],
        pool_tokens=[record.pool_tokens for record in rounds],
        target_rows=[record.target_rows for record in rounds],
        bucket_rows=[record.bucket_rows for record in rounds],
        prefill_tokens=[record.prefill_tokens for record in rounds],
        request_context_tokens=[record.request_context_tokens for record in rounds],
        row_context_tokens=[record.row_context_tokens for record in rounds],
        target_us=[micros(t.target_s) for t in times],
        feed_us=[micros(t.feed_s) for t in times],
        draft_us=[micros(t.draft_s) for t in times],
        hidden_host_us=[micros(t.hidden_host_s) for t in times],
        exposed_host_us=[micros(t.exposed_host_s) for t in times],
        launch_mode=[_MODES[record.launch_mode] for record in rounds],
        emitted_tokens=[record.emitted_tokens for record in rounds],
        accepted_tokens=[record.accepted_tokens for record in rounds],
        next_draft_tokens=[record.next_draft_tokens for record in rounds],
        plan_version=[record.plan_version for record in rounds],
        cells=[_cell(key, cell) for key, cell in tally(everything).items()],
        guard=_guard(guard),
        clamps=clamps,
        dropped_rounds=dropped_rounds,
    )


def _cell(key: CellKey, cell: AcceptanceCell) -> wire.AcceptanceCell:
    drafter, request_class, band = key
    bins = sorted(cell.by_bin.items())
    return wire.AcceptanceCell(
        drafter=drafter,
        request_class=request_class,
        context_band=band,
        asked=cell.asked,
        asked_by_position=cell.asked_by_position,
        drafted=cell.drafted,
        verified=cell.verified,
        accepted=cell.accepted,
        bin_position=[position for (position, _), _ in bins],
        bin=[score_bin for (_, score_bin), _ in bins],
        bin_drafted=[counts[0] for _, counts in bins],
        bin_verified=[counts[1] for _, counts in bins],
        bin_accepted=[counts[2] for _, counts in bins],
        score_map_version=cell.score_map_version,
    )


def _guard(state: GuardSnapshot) -> wire.GuardState:
    return wire.GuardState(
        tripped=state.tripped,
        ledger_tokens=state.ledger_tokens,
        threshold_tokens=state.threshold_tokens,
        sigma_tokens=state.sigma_tokens,
        plain_scale_ratio=state.plain_scale_ratio,
        trips=state.trips,
        readmissions=state.readmissions,
        lost_tokens=state.lost_tokens,
    )


def plan_from_wire(message: wire.Plan) -> Plan:
    """A plan as the engine reads it.

    Raises:
        ValueError: the message contradicts itself (wrong column lengths, a ladder that falls) or
            holds what is no number.
    """
    _check_finite(message)
    ladder = tuple(message.requests_ladder)
    if list(ladder) != sorted(set(ladder)) or (ladder and ladder[0] < 1):
        raise ValueError("the ladder of n must rise from 1")
    return Plan(
        version=message.version,
        requests_ladder=ladder,
        budgets={plan.drafter: _budget(plan, len(ladder)) for plan in message.drafters},
        score_maps={(m.drafter, m.request_class): _score_map(m) for m in message.score_maps},
        class_caps={
            rule.request_class: rule.max_draft_tokens
            for rule in message.class_rules
            if rule.HasField("max_draft_tokens")
        },
        class_weights={rule.request_class: rule.weight for rule in message.class_rules},
        probe=Probe(
            message.probe.cohort_share, message.probe.plain_share, message.probe.draft_tokens
        ),
        guard=_guard_thresholds(message),
        validity_s=message.validity_ms / 1e3,
        grace_s=message.grace_ms / 1e3,
        report_interval_s=message.report_interval_ms / 1e3,
        policy=message.policy,
        reason=message.reason,
    )


def _budget(plan: wire.DrafterPlan, steps: int) -> DrafterBudget:
    width = plan.max_carried_tokens + 1
    if len(plan.draft_tokens) != steps or len(plan.target_rows) != steps * width:
        raise ValueError(f"the budgets of {plan.drafter!r} do not fit the ladder")
    rows = tuple(plan.target_rows)
    return DrafterBudget(
        draft_tokens=tuple(plan.draft_tokens),
        target_rows=tuple(rows[step * width : (step + 1) * width] for step in range(steps)),
    )


def _score_map(message: wire.ScoreMap) -> ScoreMap:
    bins = message.bins
    if not message.positions or not bins or len(message.survival) != message.positions * bins:
        raise ValueError(f"the score map of {message.drafter!r} has the wrong size")
    values = tuple(message.survival)
    rows = (values[place * bins : (place + 1) * bins] for place in range(message.positions))
    return ScoreMap(message.version, tuple(rows))


def _guard_thresholds(message: wire.Plan) -> GuardThresholds:
    """Within bounds, or the safe defaults: a plan can neither forget nor defeat the guard."""
    given, default = message.guard, GuardThresholds()
    minimum, ratio = given.minimum_threshold_tokens, given.detectable_loss_ratio
    return GuardThresholds(
        minimum_tokens=minimum if 1 <= minimum <= 64 else default.minimum_tokens,
        detectable_loss_ratio=ratio if 0.005 <= ratio <= 0.2 else default.detectable_loss_ratio,
    )


def _check_finite(message: wire.Plan) -> None:
    numbers = [
        message.probe.cohort_share,
        message.probe.plain_share,
        *(rule.weight for rule in message.class_rules),
        *(value for score_map in message.score_maps for value in score_map.survival),
    ]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a share, weight or survival is no finite number")
