"""The published planner, literally: decisions computed by hand, its failures, and who has them not.

The numbering of the failures is that of planner.md, "The baseline to beat".
"""

from dataclasses import replace

import numpy as np
import pytest

from outrider_planner.core.cost import CostModel
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import DrafterStatistics, RoundHistory, Snapshot, parse
from outrider_planner.core.policies.lightspec import allowed_lengths, captured_rows
from outrider_planner.core.search import DrafterDecision
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    DrafterCost,
    DrafterTraits,
    Objective,
    RoundColumns,
    WorkerLimits,
)
from tests.unit.planner.builders import World, make_hello, make_rounds

K = 2
LADDER = (1, 2)
MTP = DrafterTraits("x", DrafterCost.AUTOREGRESSIVE, max_draft_tokens=K)
EAGLE = replace(MTP, writes_kv=True)
BLOCK = replace(MTP, cost=DrafterCost.PARALLEL)


def costs(draft_ms: float = 1.0, feed_ms: float = 0.0, edges: tuple[int, ...] = ()) -> CostModel:
    """T(b) = 10 + b ms, D(n, d) = d · draft_ms, E = feed_ms; no host time."""
    rows = np.arange(7.0)
    draft = np.tile(draft_ms * 1e-3 * np.arange(K + 1), (len(LADDER), 1))
    return CostModel(
        LADDER,
        (10.0 + rows) * 1e-3,
        {"x": np.full(7, feed_ms * 1e-3)},
        {"x": draft},
        np.zeros(2),
        np.zeros(2),
        edges,
    )


def statistics(traits: DrafterTraits, survival: tuple[tuple[float, ...], ...]) -> DrafterStatistics:
    """``survival``: by position and equally frequent bin."""
    values = np.array(survival)[None]
    bins = values.shape[2]
    found = Estimates(values, np.ones((1, K)), np.full(values.shape, 1 / bins), np.ones(1), 1e6)
    return DrafterStatistics(traits, gain_model(found, False), 1e6, ("a",), found)


def decided(
    history: RoundHistory,
    traits: DrafterTraits = MTP,
    cost: CostModel | None = None,
    present: int = 1,
    policy: str = "lightspec",
    survival: tuple[tuple[float, ...], ...] = ((0.5,), (0.25,)),
) -> DrafterDecision:
    snapshot = Snapshot(LADDER, present, (statistics(traits, survival),), rounds=history)
    limits = WorkerLimits(2, 6, K)
    decision = parse(policy).decide(snapshot, cost or costs(), limits, Objective.THROUGHPUT)
    return decision.drafters[0]


def rounds_of(n: int, rows: int, carried: int, emitted: int, count: int = 1) -> RoundColumns:
    return make_rounds(
        count,
        requests=n,
        carried=carried,
        target_rows=rows,
        bucket_rows=rows,
        emitted_tokens=emitted,
    )


def outcomes(verified: tuple[int, ...], accepted: tuple[int, ...]) -> tuple[CellKey, Counts]:
    counts = Counts.zeros(len(verified), 1)
    counts.asked[:] = verified
    counts.grid[0, :, 0] = counts.grid[1, :, 0] = verified
    counts.grid[2, :, 0] = accepted
    return CellKey("x", "a"), counts


# Decisions by hand. At n = 1: J = (10 + B + d) / tokens, in ms.


def test_unseen_depths_are_believed_whole() -> None:
    """d = 0: 11/1; d = 1: 13/2; d = 2: 15/3 = 5 ms a token."""
    found = decided(RoundHistory())
    assert found.draft_tokens.tolist() == [2, 2]
    assert found.verify_tokens[0].tolist() == [0, 1, 2]
    assert found.rate[0] == pytest.approx(1 / 5e-3)


def test_seen_triples_are_averaged_with_the_old_weight() -> None:
    """3 tokens of 3 rows, then 1: 0.9·1 + 0.1/3 = 0.9333 a row, 2.8 tokens, 15/2.8 ms."""
    history = RoundHistory()
    history.observe(rounds_of(1, 3, 2, 3), ())
    history.observe(rounds_of(1, 3, 2, 1), ())
    assert history.progress(1)[3, 2] == pytest.approx(0.9 + 0.1 / 3)
    found = decided(history)
    assert found.draft_tokens[0] == 2
    assert found.rate[0] == pytest.approx(2.8 / 15e-3)


def test_unseen_triples_are_filled_breadth_first_by_depth() -> None:
    """S = (0.5, 0.25) from one full round of 4 requests' outcomes, n = 2.

    d = 0: 12/2 = 6; d = 1, B = 3: 14/2.5 = 5.6, B = 4: 15/3 = 5 ms; d = 2, B = 4: 16/3, B = 5:
    17/3.25, B = 6: 18/3.5 = 5.143 ms. So d = 1; a carried 2 verifies all.
    """
    history = RoundHistory()
    history.observe(rounds_of(4, 12, 2, 7), (outcomes((4, 4), (2, 1)),))
    assert history.survival(2).tolist() == [0.5, 0.25]
    found = decided(history, present=2)
    assert found.draft_tokens[1] == 1
    assert found.verify_tokens[1].tolist() == [0, 2, 4]
    assert found.rate[1] == pytest.approx(3 / 15e-3)


def test_depths_move_only_by_rounds_that_verified_everything() -> None:
    history = RoundHistory()
    history.observe(rounds_of(2, 6, 2, 6), (outcomes((2, 2), (2, 2)),))
    history.observe(rounds_of(2, 4, 2, 2), (outcomes((2, 0), (0, 0)),))
    assert history.survival(2).tolist() == [1.0, 1.0]
    history.observe(rounds_of(2, 6, 2, 2), (outcomes((2, 2), (0, 0)),))
    assert history.survival(2).tolist() == pytest.approx([0.9, 0.9])


def test_a_copy_of_what_was_seen_stays_as_it_was() -> None:
    """Questions are answered in a thread, while rounds go on coming."""
    history = RoundHistory()
    history.observe(rounds_of(2, 6, 2, 6), (outcomes((2, 2), (2, 2)),))
    copy = history.copy()
    history.observe(rounds_of(2, 6, 2, 2), (outcomes((2, 2), (0, 0)),))
    history.observe(rounds_of(2, 4, 2, 2), ())
    assert dict(copy.progress(2)) == {(6, 2): 1.0}
    assert copy.survival(2).tolist() == [1.0, 1.0]
    assert len(history.progress(2)) == 2
    assert decided(copy, present=2).rate[1] > decided(history, present=2).rate[1]


def test_ties_go_to_the_smaller_depth_and_the_fewer_rows() -> None:
    """No draft is ever accepted and nothing costs anything: all pairs tie."""
    history = RoundHistory()
    history.observe(rounds_of(1, 3, 2, 1), (outcomes((1, 1), (0, 0)),))
    free = replace(costs(0.0), target_s=np.full(7, 0.01))
    found = decided(history, cost=free)
    assert found.draft_tokens[0] == 0
    assert found.verify_tokens[0].tolist() == [0, 0, 0]


def test_costs_and_depths_follow_the_family() -> None:
    """n = 1, nothing seen, D(n) = 4, E = 2 ms. MTP d = 2: 13 + 8. Chained: 13 + 2 + 4.

    A block drafter pays 2 + 8 for any depth.
    """
    cost = costs(4.0, 2.0)
    for traits, seconds in ((MTP, 21e-3), (EAGLE, 19e-3), (BLOCK, 23e-3)):
        assert decided(RoundHistory(), traits, cost).rate[0] == pytest.approx(3 / seconds)
    assert allowed_lengths(MTP, K).tolist() == [0, 1, 2]
    assert allowed_lengths(EAGLE, K).tolist() == [1, 2]
    assert allowed_lengths(BLOCK, K).tolist() == [2]
    assert allowed_lengths(EAGLE, 0).tolist() == [0]


def test_rows_are_captured_sizes_and_both_ends() -> None:
    assert captured_rows(2, K, costs(edges=(1, 4, 5, 6))).tolist() == [2, 4, 5, 6]
    assert captured_rows(2, K, costs()).tolist() == [2, 3, 4, 5, 6]
    padded = replace(costs(edges=(5,)), target_s=np.full(7, 0.01))
    found = decided(RoundHistory(), cost=padded, present=2)
    assert found.verify_tokens[1].tolist() == [0, 2, 4], "5 rows are captured, 6 are all drafts"


# Its failures, and that two_stage has them not.


def played(policy: str, acceptance: float, requests: int = 4, **changes: object) -> World:
    planner = Planner(PlannerConfig(policy=parse(policy)))
    return World(planner, make_hello(requests=8), acceptance, requests, **changes)  # type: ignore[arg-type]


def drafts_at(world: World, requests: int) -> int:
    step = next(i for i, n in enumerate(world.plan.requests_ladder) if n >= requests)
    return world.plan.drafters[0].draft_tokens[step]


def rows_at(world: World, requests: int) -> int:
    """B in the steady state."""
    step = next(i for i, n in enumerate(world.plan.requests_ladder) if n >= requests)
    return world.plan.drafters[0].target_rows[step][drafts_at(world, requests)]


@pytest.mark.parametrize(("policy", "returns"), [("lightspec", False), ("two_stage", True)])
def test_1_off_is_absorbing(policy: str, returns: bool) -> None:
    world = played(policy, 0.8)
    world.run(160)
    assert drafts_at(world, 4) > 0
    world.acceptance = 0.05
    world.run(480)
    assert rows_at(world, 4) == 4
    world.acceptance = 0.8
    world.run(1600, per_report=16)
    assert (rows_at(world, 4) > 4) is returns


@pytest.mark.parametrize(("policy", "wastes"), [("lightspec", True), ("two_stage", False)])
def test_2_churn_starves_it(policy: str, wastes: bool) -> None:
    """One new request in every round, and drafts that are never accepted."""
    world = played(policy, 0.0, newcomers=1)
    world.run(480)
    assert (rows_at(world, 4) > 4) is wastes


def test_3_one_noisy_sample_of_a_cell_is_believed_for_ever() -> None:
    """Nothing of one unlucky round of n = 2 is accepted, though survival is 0.95 elsewhere."""
    history = RoundHistory()
    history.observe(rounds_of(1, 3, 2, 3, 50), (outcomes((50, 50), (48, 46)),))
    assert decided(history, present=2).draft_tokens[1] == 2
    history.observe(rounds_of(2, 6, 2, 2), ())
    history.observe(rounds_of(2, 4, 1, 2), ())
    for _ in range(20):
        found = decided(history, present=2)
        d = int(found.draft_tokens[1])
        rows = 2 + int(found.verify_tokens[1, d])
        assert rows < 6, "the best cell is not tried again"
        history.observe(rounds_of(2, rows, d, rows), ())
    two_stage = decided(history, policy="two_stage", survival=((0.95,), (0.9,)))
    assert two_stage.verify_tokens[1, 2] == 4


def test_4_easy_and_hard_requests_get_the_same_treatment() -> None:
    """Half of the drafts are sure, half hopeless: only two_stage verifies the sure half."""
    history = RoundHistory()
    history.observe(rounds_of(2, 6, 2, 4, 50), (outcomes((100, 100), (50, 50)),))
    scores = ((0.0, 1.0), (0.0, 1.0))
    steep = replace(costs(), target_s=(10.0 + 3.0 * np.arange(7.0)) * 1e-3)
    blind = decided(history, MTP, steep, 2)
    seeing = decided(history, MTP, steep, 2, "two_stage", scores)
    assert blind.verify_tokens[1, 2] in (0, 4), "nothing or all"
    assert 0 < seeing.verify_tokens[1, 2] < 4
    assert seeing.rate[1] > blind.rate[1]


@pytest.mark.parametrize(("policy", "noticed"), [("lightspec", False), ("two_stage", True)])
def test_5_and_9_mispriced_rows_mislead(policy: str, noticed: bool) -> None:
    """Rows cost five times what was measured at length 2, or with identical rows in an MoE."""
    world = played(policy, 0.5, target=lambda rows: 10_000 + 5_000 * rows)
    world.run(480)
    assert (drafts_at(world, 4) == 0) is noticed


def test_6_per_round_ratios_over_verify_drafts_that_are_paid_for() -> None:
    """Dear drafts are at hand: the ratio of this round wants them all, the long run does not."""
    cost = replace(costs(20.0), target_s=(10.0 + 4.0 * np.arange(7.0)) * 1e-3)
    history = RoundHistory()
    history.observe(rounds_of(1, 3, 2, 1), (outcomes((100, 100), (25, 6)),))
    history.observe(rounds_of(1, 3, 2, 1), (outcomes((100, 100), (25, 6)),))
    survival = ((0.25,), (0.06,))
    literal = decided(history, cost=cost)
    ours = decided(history, cost=cost, policy="two_stage", survival=survival)
    assert ours.draft_tokens[0] == literal.draft_tokens[0] == 0
    assert literal.verify_tokens[0, 1] == 1
    assert ours.verify_tokens[0, 1] == 0
    off_rate = 1 / 14e-3
    assert off_rate * 4e-3 > 0.25, "the row costs more than the draft brings"


def test_7_drafters_with_attention_never_stop_drafting() -> None:
    history = RoundHistory()
    history.observe(rounds_of(1, 3, 2, 1, 9), (outcomes((9, 9), (0, 0)),))
    history.observe(rounds_of(1, 2, 1, 1, 9), ())
    literal = decided(history, EAGLE)
    ours = decided(history, EAGLE, policy="two_stage", survival=((0.01,), (0.0,)))
    assert (literal.draft_tokens[0], literal.verify_tokens[0, 1]) == (1, 0)
    assert ours.draft_tokens[0] == 0
