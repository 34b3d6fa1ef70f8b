"""Both stages against plain loops over everything, and the bounds of every plan."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_planner.core.assemble import PlanTerms, assemble
from outrider_planner.core.cost import CostModel, request_ladder
from outrider_planner.core.gain import gain_model
from outrider_planner.core.policies import DrafterStatistics, Snapshot, parse
from outrider_planner.core.search import REPLACEMENT_MARGIN, decide, tabulate
from outrider_planner.core.types import (
    DrafterTraits,
    GuardSettings,
    Objective,
    WorkerLimits,
)
from tests.property.planner.reference import Drafts
from tests.property.planner.test_gain import estimates_of, random_drafts

K = 3
LADDER = (1, 2, 3)


@st.composite
def random_costs(draw: st.DrawFn, padded: bool = False) -> CostModel:
    """Any table, also one that dips; with buckets, T_eff of one that rises."""
    max_rows = draw(st.integers(4, 12))
    times = st.floats(1e-3, 2e-2)
    target = np.array(draw(st.lists(times, min_size=max_rows + 1, max_size=max_rows + 1)))
    edges = np.zeros(0, dtype=np.int64)
    if padded:
        inner = draw(st.sets(st.integers(1, max_rows - 1), max_size=4))
        edges = np.array(sorted({*inner, max_rows}))
    rising = draw(st.lists(st.floats(0, 1e-3), min_size=max_rows, max_size=max_rows))
    feed = np.concatenate([[0.0], np.cumsum(rising)])
    if padded:
        bucket = edges[np.searchsorted(edges, np.arange(max_rows + 1))]
        target, feed = np.sort(target)[bucket], feed[bucket]
    target[0] = 0.0
    steps = draw(st.lists(st.floats(0, 3e-3), min_size=K * 3, max_size=K * 3))
    draft = np.concatenate([np.zeros((3, 1)), np.cumsum(np.array(steps).reshape(3, K), 1)], 1)
    host = np.array(draw(st.lists(st.floats(0, 1e-3), min_size=3, max_size=3)))
    return CostModel(LADDER, target, {"x": feed}, {"x": draft}, host, tuple(edges.tolist()))


def reference(drafts: Drafts, cost: CostModel, step: int) -> tuple[float, dict[Any, Any]]:
    """ρ(n) and, for every carried d, the value of every V, by enumeration."""
    n, host = cost.ladder[step], cost.host_s[step]
    rates = {(0, 0): n / (cost.target_s[n] + host)}
    gains, seconds = {}, {}
    for d in range(1, K + 1):
        for verify in range(min(n * d, cost.max_rows - n) + 1):
            outcomes = drafts.lengths(n, d)
            rows = [n + min(verify, sum(each)) for _, each in outcomes]
            seconds[d, verify] = sum(
                p * (cost.target_s[r] + cost.feed_s["x"][r])
                for (p, _), r in zip(outcomes, rows, strict=True)
            )
            gains[d, verify] = drafts.gain(n, d, verify)
            whole = seconds[d, verify] + cost.draft_s["x"][step, d] + host
            rates[d, verify] = (n + gains[d, verify]) / whole
    rho = max(rates.values())
    values = {key: gains[key] - rho * seconds[key] for key in gains}
    return rho, {"rates": rates, "values": values}


@settings(max_examples=20)
@given(st.data(), st.booleans(), st.booleans())
def test_both_stages_agree_with_brute_force(
    data: st.DataObject, sparse: bool, padded: bool
) -> None:
    drafts = data.draw(random_drafts(sparse=sparse))
    cost = data.draw(random_costs(padded=padded))
    found = decide("x", gain_model(estimates_of(drafts), sparse), cost, None)
    for step in range(len(LADDER)):
        n = LADDER[step]
        rho, tables = reference(drafts, cost, step)
        assert found.rate[step] == pytest.approx(rho, rel=1e-9)
        d = int(found.draft_tokens[step])
        best = max(rate for (length, _), rate in tables["rates"].items() if length == d)
        assert best == pytest.approx(rho, rel=1e-9)
        for carried in range(1, K + 1):
            verify = int(found.verify_tokens[step, carried])
            assert verify <= min(n * carried, cost.max_rows - n)
            reachable = [v for (length, _), v in tables["values"].items() if length == carried]
            value = tables["values"][carried, verify]
            assert value == pytest.approx(max(reachable), abs=1e-9)
        assert found.verify_tokens[step, 0] == 0


@given(random_drafts(), random_costs())
def test_the_steady_state_of_both_stages_is_one_cell(drafts: Drafts, cost: CostModel) -> None:
    """Stage 1 at the chosen d finds what stage 2 assumed: no other depth sequence is better."""
    found = decide("x", gain_model(estimates_of(drafts), False), cost, None)
    for step, n in enumerate(LADDER):
        d = int(found.draft_tokens[step])
        steady = (n + found.accepted[step, d]) / (found.pass_s[step, d] + found.prepare_s[step, d])
        assert steady == pytest.approx(found.rate[step], rel=1e-9)


@given(random_drafts(), random_drafts(), random_costs())
def test_a_kept_plan_loses_at_most_the_margin(before: Drafts, now: Drafts, cost: CostModel) -> None:
    previous = decide("x", gain_model(estimates_of(before), False), cost, None)
    gain = gain_model(estimates_of(now), False)
    kept = decide("x", gain, cost, previous)
    free = decide("x", gain, cost, None)
    pools = gain.pools(LADDER)
    for step in range(len(LADDER)):
        stage = tabulate("x", gain, cost, step, pools[step])
        d = int(kept.draft_tokens[step])
        column = int(np.searchsorted(stage.verify, kept.verify_tokens[step, d]))
        got = float(stage.rates()[d, column])
        assert got >= free.rate[step] * (1 - REPLACEMENT_MARGIN) - 1e-9
    again = decide("x", gain, cost, kept)
    assert (again.draft_tokens == kept.draft_tokens).all()
    assert (again.verify_tokens == kept.verify_tokens).all()


@given(
    random_drafts(sparse=True),
    random_costs(),
    st.sampled_from(["two_stage", "static:0", "static:2", "static:9", "off"]),
    st.booleans(),
)
def test_every_plan_stays_within_bounds(
    drafts: Drafts, cost: CostModel, policy: str, sparse: bool
) -> None:
    """Z07: never more verified than was drafted; never a row or a length beyond the limits."""
    limits = WorkerLimits(LADDER[-1], cost.max_rows, K)
    traits = DrafterTraits("x", max_draft_tokens=K, sparse=sparse)
    gain = gain_model(estimates_of(drafts), sparse)
    snapshot = Snapshot(LADDER, 1, (DrafterStatistics(traits, gain, 3.0),))
    decision = parse(policy).decide(snapshot, cost, limits, Objective.THROUGHPUT)
    terms = PlanTerms(policy, "throughput", 250, 5000, 5000, GuardSettings())
    plan = assemble(decision, LADDER, limits, (), terms)
    (drafter,) = plan.drafters
    for step, n in enumerate(LADDER):
        assert 0 <= drafter.draft_tokens[step] <= K
        for carried, rows in enumerate(drafter.target_rows[step]):
            assert n <= rows <= min(n * (1 + carried), cost.max_rows)
    assert 0.0 <= plan.probe.cohort_share <= 1 / 32
    assert plan.probe.draft_tokens <= K


@given(st.integers(1, 2000))
def test_the_ladder_reaches_the_limit_in_small_steps(limit: int) -> None:
    ladder = request_ladder(limit)
    assert ladder[0] == 1
    assert ladder[-1] == limit
    assert all(a < b <= 2 * a for a, b in pairwise(ladder))
