"""From round records to what the planner is told, and back from its plans."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.planner.v1 import planner_pb2 as wire
from outrider_worker.engine.costs import CostCurve, CostTable, Timing, interpolate
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plans import GuardThresholds
from outrider_worker.engine.records import DraftOutcome, RoundRecord
from outrider_worker.engine.tally import RecordRing, context_band, tally
from outrider_worker.planner_client.convert import plan_from_wire, reports_to_wire
from outrider_worker.profile import load_costs, profile_contexts, row_ladder, store_costs
from outrider_worker.programs import SeatSize
from outrider_worker.speculate.ngram import NgramDrafter
from tests.support.engines import Bench, prompts, request, static_plan


def _records() -> list[RoundRecord]:
    bench = Bench(NgramDrafter(8), static_plan("ngram", 5))
    greedy, also_greedy, sampled = prompts(3)
    bench.run(request(greedy, 60), request(also_greedy, 60), request(sampled, 60, temperature=1.0))
    return bench.records


def test_a_report_carries_every_round_once_and_sums_that_agree() -> None:
    records = _records()
    rounds = [r for r in records if r.requests]
    message = reports_to_wire(3, records, Guard().snapshot(), clamps=2, dropped_rounds=1)
    columns = [
        getattr(message, field.name)
        for field in wire.StepReports.DESCRIPTOR.fields
        if field.is_repeated and field.name != "cells"
    ]
    assert {len(column) for column in columns} == {len(rounds)}
    assert list(message.round) == [r.round for r in rounds]
    assert sum(message.emitted_tokens) == sum(r.emitted_tokens for r in rounds)
    assert (message.sequence, message.clamps, message.dropped_rounds) == (3, 2, 1)
    assert {cell.request_class for cell in message.cells} == {"greedy", "sampled"}
    for cell in message.cells:
        for position, drafted in enumerate(cell.drafted):
            in_bins = [
                n
                for n, place in zip(cell.bin_drafted, cell.bin_position, strict=True)
                if place == position
            ]
            assert sum(in_bins) == drafted <= cell.asked_by_position[position] <= cell.asked


def test_reports_of_short_intervals_count_every_draft() -> None:
    """Rounds and cells tell of the same drafts as long as no request brings more than its share."""
    records = _records()
    for start in range(0, len(records), 32):
        message = reports_to_wire(1, records[start : start + 32], Guard().snapshot(), 0, 0)
        assert sum(sum(cell.accepted) for cell in message.cells) == sum(message.accepted_tokens)
        assert sum(sum(cell.drafted) for cell in message.cells) == sum(message.pool_tokens)
        bounds = zip(
            *(message.requests, message.carried_draft_tokens, message.pool_tokens),
            message.target_rows,
            strict=True,
        )
        assert all(rows - n <= pool <= n * carried for n, carried, pool, rows in bounds)


def test_one_request_brings_at_most_32_samples_of_a_cell() -> None:
    records = _records()
    cells = reports_to_wire(1, records, Guard().snapshot(), 0, 0).cells
    assert {cell.request_class: cell.asked for cell in cells} == {"greedy": 64, "sampled": 32}


def test_drafted_verified_accepted_are_three_counts() -> None:
    """G04: draft 7, verify 3, accept 2 → 7/3/2, by position; the bonus token is in none."""
    outcome = DraftOutcome("x", "greedy", 50, 7, (1,) * 7, verified=3, accepted=2)
    (record, *_) = _records()
    cell = tally([replace(record, outcomes=(outcome,))])["x", "greedy", 0]
    assert cell.drafted == [1] * 7
    assert cell.verified == [1] * 3
    assert cell.accepted == [1] * 2
    assert cell.by_bin[2, 1] == [1, 1, 0]


def test_the_ring_drops_the_oldest_and_counts() -> None:
    record = _records()[-1]
    ring = RecordRing(capacity_rounds=3)
    for _ in range(5):
        ring.append(record)
    assert ring.dropped_rounds == 2
    assert len(ring.take(limit=2)) == 2
    assert len(ring.take()) == 1
    assert ring.take() == []


@pytest.mark.parametrize(("tokens", "band"), [(1, 0), (1023, 0), (1024, 1), (5000, 2), (99999, 3)])
def test_context_bands(tokens: int, band: int) -> None:
    assert context_band(tokens) == band


def _wire_plan() -> wire.Plan:
    return wire.Plan(
        version=7,
        requests_ladder=[1, 2],
        drafters=[
            wire.DrafterPlan(
                drafter="ngram",
                draft_tokens=[2, 1],
                max_carried_tokens=2,
                target_rows=[1, 2, 3, 2, 4, 5],
            )
        ],
        score_maps=[
            wire.ScoreMap(
                version=1, drafter="ngram", request_class="greedy", positions=1, bins=2,
                survival=[0.25, 0.5],
            )
        ],
        validity_ms=5000,
        grace_ms=4000,
        report_interval_ms=250,
    )  # fmt: skip


def test_a_plan_survives_the_wire() -> None:
    plan = plan_from_wire(_wire_plan())
    assert plan.draft_tokens("ngram", 1) == 2
    assert plan.draft_tokens("ngram", 9) == 1
    assert plan.target_rows("ngram", 2, 2) == 5
    assert plan.score_maps["ngram", "greedy"].score(4, 9) == 0.5
    assert (plan.validity_s, plan.grace_s, plan.report_interval_s) == (5.0, 4.0, 0.25)
    assert plan.guard == GuardThresholds()


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1e9, float("nan"), float("inf")])
@pytest.mark.parametrize("ratio", [0.0, 0.9, float("nan")])
def test_a_plan_can_neither_forget_nor_defeat_the_guard(threshold: float, ratio: float) -> None:
    message = _wire_plan()
    message.guard.minimum_threshold_tokens = threshold
    message.guard.detectable_loss_ratio = ratio
    assert plan_from_wire(message).guard == GuardThresholds()
    message.guard.minimum_threshold_tokens = 12.0
    assert plan_from_wire(message).guard.minimum_tokens == 12.0


@pytest.mark.parametrize("fault", ["ladder", "columns", "rows", "map", "share", "survival"])
def test_a_plan_that_contradicts_itself_is_refused(fault: str) -> None:
    message = _wire_plan()
    match fault:
        case "ladder":
            message.requests_ladder[:] = [2, 1]
        case "columns":
            message.drafters[0].draft_tokens.append(1)
        case "rows":
            del message.drafters[0].target_rows[0]
        case "map":
            message.score_maps[0].bins = 3
        case "share":
            message.probe.plain_share = float("nan")
        case "survival":
            message.score_maps[0].survival[0] = float("inf")
    with pytest.raises(ValueError, match=r"ladder|budgets|score map|finite"):
        plan_from_wire(message)


def _costs(medians: dict[int, list[float]]) -> CostTable:
    rows = (1, 4, 16)
    return CostTable(
        tuple(
            CostCurve(context, rows, tuple(Timing(s, 0.0, 5) for s in seconds))
            for context, seconds in medians.items()
        )
    )


def test_costs_are_linear_between_what_was_measured() -> None:
    costs = _costs({100: [1.0, 2.0, 5.0], 300: [2.0, 4.0, 10.0]})
    assert costs.target_s(1, 50) == 1.0
    assert costs.target_s(10, 100) == 3.5
    assert costs.target_s(4, 200) == 3.0
    assert costs.target_s(4, 500) == 6.0  # beyond the longest context measured
    assert costs.target_s(20, 100) == 6.0


@given(
    x=st.floats(-10, 100),
    ys=st.lists(st.floats(0, 50), min_size=3, max_size=3).map(sorted),
)
def test_interpolation_keeps_order(x: float, ys: list[float]) -> None:
    xs = [1.0, 5.0, 20.0]
    assert interpolate(x, xs, ys) <= interpolate(x + 1, xs, ys) + 1e-9
    for known_x, known_y in zip(xs, ys, strict=True):
        assert interpolate(known_x, xs, ys) == pytest.approx(known_y)


def test_cost_tables_are_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "costs" / "x.json"
    assert load_costs(file) is None
    costs = _costs({100: [1.0, 2.0, 5.0]})
    store_costs(file, costs)
    assert load_costs(file) == costs
    file.write_text(file.read_text()[:-5])
    assert load_costs(file) is None


def test_two_contexts_within_what_is_served() -> None:
    assert profile_contexts(2048) == (128, 1024)
    assert profile_contexts(16) == (1, 8)


def test_the_row_ladder_is_what_the_device_computes_up_to_the_longest_round() -> None:
    size = SeatSize(seats=4, max_context_tokens=64, max_draft_tokens=4, max_rows=128)
    assert row_ladder(size, torch.device("cpu")) == (1, 2, 3, 4, 6, 8, 12, 16)
    assert row_ladder(size, torch.device("cuda")) == (1, 2, 4, 8, 16)
