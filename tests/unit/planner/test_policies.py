"""Policies by name, and what each says."""

import numpy as np
import pytest

from outrider_planner.core.cost import CostTracker, request_ladder
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import estimate
from outrider_planner.core.policies import (
    DrafterStatistics,
    Snapshot,
    UnknownPolicyError,
    parse,
)
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import Objective
from tests.unit.planner.builders import make_hello, make_table

HELLO = make_hello(requests=4, max_draft=4)
LADDER = request_ladder(4)


def snapshot(survival: float, present: int = 1) -> Snapshot:
    counts = Counts.zeros(4, 1)
    for j in range(4):
        counts.grid[:, j, 0] = (4000, 4000, 4000 * survival ** (j + 1))
    counts.asked[:] = 4000
    found = estimate([counts], [Counts.zeros(4, 1)], Counts.zeros(4, 1), False)
    drafter = DrafterStatistics(HELLO.drafters[0], gain_model(found, False), found.verified)
    return Snapshot(LADDER, present, (drafter,))


def costs(**changes: object) -> CostTracker:
    hello = make_hello(requests=4, max_draft=4, **changes)  # type: ignore[arg-type]
    return CostTracker(hello, LADDER)


def decided(name: str, survival: float = 0.9, **changes: object):  # type: ignore[no-untyped-def]
    model = costs(**changes).model()
    return parse(name).decide(snapshot(survival), model, HELLO.limits, Objective.THROUGHPUT)


@pytest.mark.parametrize("name", ["two_stage", "static:0", "static:7", "off"])
def test_names_round_trip(name: str) -> None:
    assert parse(name).name == name


@pytest.mark.parametrize(
    "name", ["", "fast", "static", "static:", "static:-1", "static:x", "static:999", "off:1"]
)
def test_unknown_policies_are_refused_with_those_known(name: str) -> None:
    with pytest.raises(UnknownPolicyError) as refused:
        parse(name)
    assert "static:K" in str(refused.value)


def test_static_drafts_and_verifies_all_that_limits_allow() -> None:
    (drafter,) = decided("static:3").drafters
    assert drafter.draft_tokens.tolist() == [3] * len(LADDER)
    assert drafter.verify_tokens[:, 3].tolist() == [3 * n for n in LADDER]
    (capped,) = decided("static:60").drafters
    assert capped.draft_tokens.max() == 4


def test_off_drafts_nothing_and_probes_nothing() -> None:
    decision = decided("off")
    assert decision.drafters[0].draft_tokens.tolist() == [0] * len(LADDER)
    assert decision.drafters[0].verify_tokens.max() == 0
    assert decision.probe.cohort_share == 0.0
    assert "by configuration" in decision.reason


def test_two_stage_drafts_where_it_pays_and_says_why() -> None:
    decision = decided("two_stage", survival=0.9)
    (drafter,) = decision.drafters
    assert drafter.draft_tokens[0] == 4
    assert (np.diff(drafter.draft_tokens) <= 0).all(), "load shortens drafts"
    for part in ("n=1", "drafts 4", "accepted per round", "tokens/s", "x)", "verified drafts"):
        assert part in decision.reason


def test_two_stage_turns_off_where_it_does_not_pay_and_probes() -> None:
    decision = decided("two_stage", survival=0.02)
    assert decision.drafters[0].draft_tokens.tolist() == [0] * len(LADDER)
    assert decision.reason.startswith("two_stage: ngram off at n=1")
    assert 0 < decision.probe.cohort_share <= 1 / 32
    assert decision.probe.draft_tokens == 2


def test_probes_cost_at_most_their_share() -> None:
    """Where a row costs as much as a pass, a probing round is dear: fewer of them."""
    table = make_table(target=lambda rows: 10_000 * rows, max_draft=4)
    decision = decided("two_stage", survival=0.02, table=table)
    loss = 1 - 1 / 3
    assert decision.probe.cohort_share * loss <= 0.003
    assert decision.probe.cohort_share >= 0.003 / loss / 2


@pytest.mark.parametrize("name", ["two_stage"])
def test_without_a_cost_table_a_priced_policy_is_off_and_says_so(name: str) -> None:
    decision = parse(name).decide(snapshot(0.9), None, HELLO.limits, Objective.THROUGHPUT)
    assert decision.drafters[0].draft_tokens.tolist() == [0] * len(LADDER)
    assert "no cost table" in decision.reason


def test_static_needs_no_cost_table() -> None:
    decision = parse("static:2").decide(snapshot(0.9), None, HELLO.limits, Objective.THROUGHPUT)
    assert decision.drafters[0].draft_tokens.tolist() == [2] * len(LADDER)


def test_dearer_drafting_shortens_drafts() -> None:
    cheap = decided("two_stage", table=make_table(draft_us=200, max_draft=4))
    dear = decided("two_stage", table=make_table(draft_us=8_000, max_draft=4))
    assert dear.drafters[0].draft_tokens[0] < cheap.drafters[0].draft_tokens[0]


def test_a_sparse_drafter_stays_on_where_the_expectation_over_the_pool_pays() -> None:
    """Rare but good drafts at n = 1: most rounds cost nothing extra, a few gain much."""
    counts = Counts.zeros(4, 1)
    for j in range(4):
        counts.grid[:, j, 0] = (100, 100, 95)
    counts.asked[:] = 1000
    nothing = Counts.zeros(4, 1)
    found = estimate([counts], [nothing], nothing, True)
    drafter = DrafterStatistics(HELLO.drafters[0], gain_model(found, True), found.verified)
    steep = costs(table=make_table(target=lambda rows: 10_000 + 4_000 * rows, max_draft=4))
    decision = parse("two_stage").decide(
        Snapshot(LADDER, 1, (drafter,)), steep.model(), HELLO.limits, Objective.THROUGHPUT
    )
    assert decision.drafters[0].draft_tokens[0] > 0
