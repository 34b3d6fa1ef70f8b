"""Policies by name, and what each says."""

import numpy as np
import pytest

from outrider_planner.core.cost import CostTracker, request_ladder
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import estimate
from outrider_planner.core.policies import (
    Bounds,
    DrafterStatistics,
    Snapshot,
    UnknownPolicyError,
    bounded,
    parse,
)
from outrider_planner.core.policies.oracle import OraclePolicy
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import ClassRule, Objective
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


@pytest.mark.parametrize(
    "name",
    ["two_stage", "lightspec", "dspark", "table:1=7,8=3,32=0", "static:0", "static:7", "off"],
)
def test_names_round_trip(name: str) -> None:
    assert parse(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "fast", "static", "static:", "static:-1", "static:x", "static:999", "off:1"),
        *("dspark:7", "table", "table:", "table:1", "table:1=", "table:=3"),
        *("table:0=3", "table:8=3,1=7", "table:1=3,1=2", "table:1=65", "table:1=-1", "table:1=²"),
        *("table:" + ",".join(f"{n}=1" for n in range(1, 99)), "oracle", "oracle:1"),
    ],
)
def test_unknown_policies_are_refused_with_those_known(name: str) -> None:
    with pytest.raises(UnknownPolicyError) as refused:
        parse(name)
    for usage in ("two_stage", "lightspec", "dspark", "table:n=K", "static:K", "off"):
        assert usage in str(refused.value)


def test_refusals_say_what_is_wrong() -> None:
    with pytest.raises(UnknownPolicyError, match="ascending n"):
        parse("table:8=3,1=7")
    with pytest.raises(UnknownPolicyError, match="simulations only"):
        parse("oracle")


def test_static_drafts_and_verifies_all_that_limits_allow() -> None:
    (drafter,) = decided("static:3").drafters
    assert drafter.draft_tokens.tolist() == [3] * len(LADDER)
    assert drafter.verify_tokens[:, 3].tolist() == [3 * n for n in LADDER]
    capped = decided("static:60")
    assert capped.drafters[0].draft_tokens.max() == 4
    assert capped.reason == "static:60: 4 drafts at every load, by configuration, bounded from 60"


def test_static_zero_reads_as_what_it_is() -> None:
    decision = decided("static:0")
    assert decision.drafters[0].verify_tokens.max() == 0
    assert decision.reason == "static:0: no drafts at every load, by configuration"


def test_table_drafts_by_batch_size() -> None:
    """LADDER is 1, 2, 3, 4; below its first entry the first one holds."""
    (drafter,) = decided("table:2=4,3=1,4=0").drafters
    assert LADDER == (1, 2, 3, 4)
    assert drafter.draft_tokens.tolist() == [4, 4, 1, 0]
    assert drafter.verify_tokens[:, 4].tolist() == [4, 8, 12, 0]


def test_dspark_always_drafts_in_full_and_cuts_what_it_verifies() -> None:
    """Verifying at (n + G)/T alone: 10 + b ms a pass, survival 0.3^j, n = 1, V = 0…4.

    1/11, 1.3/12, 1.39/13, … so V = 1.
    """
    decision = decided("dspark", survival=0.3)
    (drafter,) = decision.drafters
    assert drafter.draft_tokens.tolist() == [4] * len(LADDER)
    assert drafter.verify_tokens[0].tolist() == [0, 1, 1, 1, 1]
    assert drafter.rate[0] < costs().model().off_rate()[0] * 1.3  # type: ignore[union-attr]
    assert "always" in decision.reason
    hopeless = decided("dspark", survival=0.001).drafters[0]
    assert hopeless.verify_tokens.max() == 0
    assert hopeless.draft_tokens.min() == 4, "the tax stays"


def test_the_oracle_takes_the_truth_it_is_handed() -> None:
    """Statistics say hopeless, the truth is good, and the other way round."""
    truths = {0.02: 0.9, 0.9: 0.02}
    for believed, true in truths.items():
        truth = snapshot(true).drafters[0].gain
        policy = OraclePolicy(lambda _, truth=truth: truth)  # type: ignore[misc]
        found = policy.decide(
            snapshot(believed), costs().model(), HELLO.limits, Objective.THROUGHPUT
        )
        assert bool(found.drafters[0].draft_tokens[0] > 0) is (true == 0.9)
        assert found.probe.cohort_share == 0.0


@pytest.mark.parametrize("name", ["two_stage", "lightspec", "dspark", "table:1=4", "static:4"])
def test_the_cap_of_a_deployment_bounds_every_policy(name: str) -> None:
    """Longer drafts that are carried already may still be verified."""
    rule = ClassRule("greedy", 2.0)
    capped = bounded(snapshot(0.9), Bounds(max_draft_tokens=2, class_rules=(rule,)))
    decision = parse(name).decide(capped, costs().model(), HELLO.limits, Objective.THROUGHPUT)
    assert decision.drafters[0].draft_tokens.max() == 2
    assert decision.drafters[0].verify_tokens.shape[1] == 5
    assert decision.drafters[0].verify_tokens[0, 4] > 2
    assert decision.class_rules == (rule,)


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
    assert decision.probe.draft_tokens == 1


def test_probes_cost_at_most_their_share() -> None:
    """Where a row costs as much as a pass, a probing round is dear: fewer of them."""
    table = make_table(target=lambda rows: 10_000 * rows, max_draft=4)
    decision = decided("two_stage", survival=0.02, table=table)
    loss = 1 - 1 / 2
    assert decision.probe.cohort_share * loss <= 0.003
    assert decision.probe.cohort_share >= 0.003 / loss / 2


@pytest.mark.parametrize("name", ["two_stage", "lightspec", "dspark"])
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
