"""Both stages against plain loops over everything, and the bounds of every plan."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_planner.core.assemble import PlanTerms, assemble
from outrider_planner.core.cost import CostModel, request_ladder
from outrider_planner.core.gain import gain_model
from outrider_planner.core.policies import Bounds, DrafterStatistics, Snapshot, bounded, parse
from outrider_planner.core.search import (
    REPLACEMENT_MARGIN,
    Terms,
    choose_draft,
    choose_verify,
    decide,
)
from outrider_planner.core.stage import LatencyBound, tabulate
from outrider_planner.core.types import (
    ClassRule,
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
    context = np.array(draw(st.lists(st.floats(-1e-4, 1e-3), min_size=3, max_size=3)))
    return CostModel(
        LADDER, target, {"x": feed}, {"x": draft}, host, context, tuple(edges.tolist())
    )


def reference(drafts: Drafts, cost: CostModel, step: int) -> tuple[float, dict[Any, Any]]:
    """ρ(n) and, for every carried d, the value of every V, by enumeration."""
    n, host = cost.ladder[step], cost.every_round_s[step]
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
    stage = tabulate("x", gain, cost, slice(None))
    for step in range(len(LADDER)):
        d = int(kept.draft_tokens[step])
        column = int(np.searchsorted(stage.verify[step], kept.verify_tokens[step, d]))
        got = float(stage.rates()[step, d, column])
        assert got >= free.rate[step] * (1 - REPLACEMENT_MARGIN) - 1e-9
    again = decide("x", gain, cost, kept)
    assert (again.draft_tokens == kept.draft_tokens).all()
    assert (again.verify_tokens == kept.verify_tokens).all()


@given(
    random_drafts(sparse=True),
    random_costs(),
    st.sampled_from(
        [
            *("two_stage", "lightspec", "dspark", "table:1=3,2=1,3=0"),
            *("static:0", "static:2", "static:9", "off"),
        ]
    ),
    st.booleans(),
    st.sampled_from([None, 1e-3, 1e-2]),
    st.sampled_from([None, 0, 2]),
)
def test_every_plan_stays_within_bounds(
    drafts: Drafts,
    cost: CostModel,
    policy: str,
    sparse: bool,
    bound_s: float | None,
    cap: int | None,
) -> None:
    """Z07: never more verified than was drafted; never a row or a length beyond the limits."""
    limits = WorkerLimits(LADDER[-1], cost.max_rows, K)
    traits = DrafterTraits("x", max_draft_tokens=K, sparse=sparse)
    found = estimates_of(drafts)
    item = DrafterStatistics(traits, gain_model(found, sparse), 3.0, ("a",), found)
    rule = ClassRule("a", 2.0, cap)
    snapshot = bounded(Snapshot(LADDER, 1, (item,)), Bounds(bound_s, cap, (rule,)))
    objective = Objective.THROUGHPUT if bound_s is None else Objective.LATENCY
    decision = parse(policy).decide(snapshot, cost, limits, objective)
    terms = PlanTerms(policy, "throughput", 250, 5000, 5000, GuardSettings())
    plan = assemble(decision, LADDER, limits, (), terms)
    (drafter,) = plan.drafters
    for step, n in enumerate(LADDER):
        assert 0 <= drafter.draft_tokens[step] <= (K if cap is None else cap)
        for carried, rows in enumerate(drafter.target_rows[step]):
            assert n <= rows <= min(n * (1 + carried), cost.max_rows)
    assert 0.0 <= plan.probe.cohort_share <= 1 / 32
    assert plan.probe.draft_tokens <= K


@given(random_drafts(), random_costs(), st.floats(1e-3, 5e-2))
def test_a_latency_bound_agrees_with_brute_force(
    drafts: Drafts, cost: CostModel, bound_s: float
) -> None:
    """The best rate of those that keep the bound, or the nearest to it where none does."""
    gain = gain_model(estimates_of(drafts), False)
    terms = Terms(latency=LatencyBound(bound_s, (gain,), np.ones(1)))
    found = decide("x", gain, cost, None, terms)
    for step, n in enumerate(LADDER):
        cells = []
        for d in range(K + 1):
            for verify in range(1 if d else 0, min(n * d, cost.max_rows - n) + 1):
                row_s = cost.target_s[n + verify] + (cost.feed_s["x"][n + verify] if d else 0.0)
                round_s = row_s + cost.draft_s["x"][step, d] + cost.every_round_s[step]
                tokens = n + (drafts.gain(n, d, verify) if d else 0.0)
                cells.append((round_s * n / tokens, tokens / round_s))
        kept = [rate for token_s, rate in cells if token_s <= bound_s * (1 + 1e-9)]
        d = int(found.draft_tokens[step])
        verify = int(found.verify_tokens[step, d])
        assert found.token_s is not None
        if kept:
            assert found.rate[step] == pytest.approx(max(kept), rel=1e-6)
            assert found.token_s[step] <= bound_s * (1 + 1e-6)
        else:
            assert found.token_s[step] == pytest.approx(min(t for t, _ in cells), rel=1e-6)


@given(random_drafts(), random_costs(), st.integers(0, 2**32 - 1))
def test_float_noise_flips_no_decision(drafts: Drafts, cost: CostModel, seed: int) -> None:
    """Replays on another machine: gains and times off by some last bits, the same integers.

    Survivals and costs are made to tie: few values each.
    """
    coarse = replace(
        cost, target_s=np.ceil(cost.target_s * 200) / 200, draft_s={"x": np.zeros((3, K + 1))}
    )
    gain = gain_model(
        estimates_of(Drafts(np.round(drafts.survival), drafts.share, drafts.length)), False
    )
    rng = np.random.default_rng(seed)
    stage = tabulate("x", gain, coarse, slice(None))
    noise = [1 + 1e-13 * rng.uniform(-1, 1, stage.gain.shape) for _ in range(2)]
    noisy = replace(stage, gain=stage.gain * noise[0], pass_s=stage.pass_s * noise[1])
    (rate, d), (noisy_rate, noisy_d) = choose_draft(stage, None), choose_draft(noisy, None)
    assert (d == noisy_d).all()
    again = choose_verify(noisy, noisy_rate, None)
    assert (choose_verify(stage, rate, None) == again).all()


def test_time_may_change_where_no_bucket_ends() -> None:
    """Buckets of 4 and 12 rows, a table with a step at 6 of its own: it is looked at too."""
    target = np.array([0.0, *[1.0] * 4, *[1.1] * 2, *[2.0] * 6])
    none, free = np.zeros(3), {"x": np.zeros((3, K + 1))}
    cost = CostModel(LADDER, target, {"x": np.zeros(13)}, free, none, none, (4, 12))
    drafts = Drafts(np.ones((K, 1)), np.ones((K, 1)), np.array([0.9, 0.8, 0.7]))
    for sparse in (False, True):
        found = decide("x", gain_model(estimates_of(drafts), sparse), cost, None)
        for step in range(len(LADDER)):
            rho, _ = reference(drafts if sparse else replace_length(drafts), cost, step)
            assert found.rate[step] == pytest.approx(rho, rel=1e-9)


def replace_length(drafts: Drafts) -> Drafts:
    """Always as many drafts as were asked for."""
    return Drafts(drafts.survival, drafts.share, np.ones(K))


@given(st.integers(1, 2000))
def test_the_ladder_reaches_the_limit_in_small_steps(limit: int) -> None:
    ladder = request_ladder(limit)
    assert ladder[0] == 1
    assert ladder[-1] == limit
    assert all(a < b <= 2 * a for a, b in pairwise(ladder))
