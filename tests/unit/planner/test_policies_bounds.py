"""Class rules and the latency objective: what an operator's bounds do to plans."""

import numpy as np
import pytest

from outrider_planner.core.cost import CostModel, CostTracker, request_ladder
from outrider_planner.core.gain import class_gains, gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.policies import Bounds, DrafterStatistics, Snapshot, bounded, parse
from outrider_planner.core.policies.base import Decision
from outrider_planner.core.types import ClassRule, FloatArray, Objective
from tests.unit.planner.builders import make_hello

K = 4
HELLO = make_hello(requests=4, max_draft=K)
LADDER = request_ladder(4)


def estimates(good: float = 0.9, poor: float = 0.3, share: float = 0.5) -> Estimates:
    """Two classes, two bins each; survival falls geometrically."""
    depth = np.arange(1.0, K + 1)[:, None]
    survival: FloatArray = np.stack([np.array([c * 0.8, c]) ** depth for c in (good, poor)])
    return Estimates(
        survival=survival,
        length=np.ones((2, K)),
        bin_share=np.full((2, K, 2), 0.5),
        class_share=np.array([share, 1 - share]),
        verified=1e6,
    )


def snapshot(found: Estimates, present: int = 1, sparse: bool = False) -> Snapshot:
    gain = gain_model(found, sparse)
    item = DrafterStatistics(HELLO.drafters[0], gain, 1e6, ("code", "chat"), found)
    return Snapshot(LADDER, present, (item,))


def costs() -> CostModel:
    model = CostTracker(HELLO, LADDER).model()
    assert model is not None
    return model


def decided(snap: Snapshot, bounds: Bounds, objective: Objective = Objective.LATENCY) -> Decision:
    return parse("two_stage").decide(bounded(snap, bounds), costs(), HELLO.limits, objective)


def token_s(decision: Decision, found: Estimates, step: int) -> list[float]:
    """Predicted seconds between tokens of each class in the steady state of one step."""
    (item,) = decision.drafters
    n, d = LADDER[step], int(item.draft_tokens[step])
    round_s = item.pass_s[step, d] + item.prepare_s[step, d]
    if d == 0:
        return [float(round_s)] * 2
    verify = np.array([float(item.verify_tokens[step, d])])
    return [
        float(round_s / (1 + part.accepted(n, part.pool(n), verify)[d - 1, 0] / (n * share)))
        for part, share in zip(class_gains(found, False), found.class_share, strict=True)
    ]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_parts_of_the_classes_add_up(sparse: bool) -> None:
    found = estimates()
    whole, parts = gain_model(found, sparse), class_gains(found, sparse)
    for n in (1, 2, 5, 24):
        verify = np.arange(n * K + 1.0)
        pool = whole.pool(n)
        added = sum(part.accepted(n, pool, verify) for part in parts)
        assert added == pytest.approx(whole.accepted(n, pool, verify), abs=1e-9)


def test_a_capped_class_leaves_shorter_drafts() -> None:
    """Everything verified at n = 2, d = 4: the capped class brings one position of its four."""
    found = estimates()
    rule = ClassRule("chat", max_draft_tokens=1)
    gain = bounded(snapshot(found), Bounds(class_rules=(rule,))).drafters[0].gain
    pool = gain.pool(2)
    everything = gain.accepted(2, pool, np.array([8.0]))[K - 1, 0]
    mean = (found.survival * found.bin_share).sum(-1)
    assert everything == pytest.approx(2 * (0.5 * mean[0].sum() + 0.5 * mean[1, 0]))
    assert pool.expected_min(np.array([[8.0]]))[K - 1, 0] == pytest.approx(2 * 2.5)


@pytest.mark.parametrize(("weights", "first"), [(None, 0), ((0.0, 1.0), 1)])
def test_weights_decide_whose_drafts_are_picked_first(
    weights: tuple[float, ...] | None, first: int
) -> None:
    """n = 64 and rows for half of the drafts: by default the better class's are picked."""
    found = estimates()
    parts = class_gains(found, False, None if weights is None else np.array(weights))
    pool = parts[0].pool(64)
    accepted = [part.accepted(64, pool, np.array([128.0]))[K - 1, 0] for part in parts]
    everything = 64 * 0.5 * (found.survival * found.bin_share).sum((1, 2))
    assert accepted[first] > 0.9 * everything[first]
    assert accepted[1 - first] < 0.5 * everything[1 - first]


def test_rules_for_unknown_classes_change_nothing() -> None:
    plain = snapshot(estimates())
    ruled = bounded(plain, Bounds(class_rules=(ClassRule("nobody", 9.0, 0),)))
    assert ruled.drafters[0] is plain.drafters[0]
    assert (
        decided(ruled, ruled.bounds, Objective.THROUGHPUT).class_rules == ruled.bounds.class_rules
    )


def test_the_bound_holds_for_every_class_where_it_can() -> None:
    """At 17 ms off is 11 ms + rows; a poor class must not pay for the good one's long drafts."""
    found = estimates(good=0.95, poor=0.05)
    free = decided(snapshot(found), Bounds(), Objective.THROUGHPUT)
    bound_s = 0.0125
    tight = decided(snapshot(found), Bounds(latency_bound_s=bound_s))
    assert max(token_s(free, found, 0)) > bound_s
    for step in range(len(LADDER)):
        slowest = max(token_s(tight, found, step))
        off_s = float(costs().target_s[LADDER[step]] + costs().host_s[step])
        assert slowest <= max(bound_s, off_s) * (1 + 1e-6)
    assert tight.drafters[0].draft_tokens[0] < free.drafters[0].draft_tokens[0]
    assert "ms between tokens, bound 12.5 ms" in tight.reason


def test_a_generous_bound_changes_nothing() -> None:
    free = decided(snapshot(estimates()), Bounds(), Objective.THROUGHPUT)
    loose = decided(snapshot(estimates()), Bounds(latency_bound_s=1.0))
    assert (free.drafters[0].draft_tokens == loose.drafters[0].draft_tokens).all()
    assert (free.drafters[0].verify_tokens == loose.drafters[0].verify_tokens).all()


def test_a_bound_out_of_reach_is_approached_and_said_so() -> None:
    """Good drafts: speculating is the nearest to a bound that off keeps even less."""
    found = estimates(good=0.95, poor=0.9)
    decision = decided(snapshot(found), Bounds(latency_bound_s=1e-4))
    (item,) = decision.drafters
    assert item.draft_tokens[0] > 0
    assert "out of reach" in decision.reason
    off_s = float(costs().target_s[1] + costs().host_s[0])
    assert max(token_s(decision, found, 0)) < off_s


def test_an_unbounded_latency_objective_is_throughput() -> None:
    free = decided(snapshot(estimates()), Bounds(), Objective.THROUGHPUT)
    assert decided(snapshot(estimates()), Bounds()).reason == free.reason


def test_a_class_that_hardly_runs_does_not_bind() -> None:
    found = estimates(good=0.95, poor=0.0, share=0.995)
    decision = decided(snapshot(found), Bounds(latency_bound_s=0.0125))
    assert decision.drafters[0].draft_tokens[0] > 0
