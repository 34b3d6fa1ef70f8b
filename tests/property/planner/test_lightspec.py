"""``lightspec`` against plain loops over every pair (B, d), and its averages over any rounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import gain_model
from outrider_planner.core.policies import DrafterStatistics, RoundHistory, Snapshot, parse
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    DrafterCost,
    DrafterTraits,
    Objective,
    RoundColumns,
    WorkerLimits,
)
from tests.property.planner.reference import Drafts
from tests.property.planner.test_gain import estimates_of
from tests.property.planner.test_search import LADDER, K, random_costs
from tests.unit.planner.builders import column, make_rounds

FAMILIES = (
    DrafterTraits("x", DrafterCost.HOST, max_draft_tokens=K),
    DrafterTraits("x", DrafterCost.AUTOREGRESSIVE, max_draft_tokens=K),
    DrafterTraits("x", DrafterCost.AUTOREGRESSIVE, max_draft_tokens=K, writes_kv=True),
    DrafterTraits("x", DrafterCost.PARALLEL, max_draft_tokens=K),
)


@st.composite
def random_rounds(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(n, d, verified, accepted) of possible rounds."""
    found = []
    for _ in range(draw(st.integers(0, 12))):
        n, d = draw(st.sampled_from(LADDER)), draw(st.integers(0, K))
        verified = draw(st.integers(0, n * d))
        found.append((n, d, verified, draw(st.integers(0, verified))))
    return found


def columns(n: int, d: int, verified: int, accepted: int, pool: int | None = None) -> RoundColumns:
    return make_rounds(
        1,
        requests=n,
        carried=d,
        pool_tokens=n * d if pool is None else pool,
        target_rows=n + verified,
        bucket_rows=n + verified,
        emitted_tokens=n + accepted,
    )


def observed(rounds: list[tuple[int, int, int, int]]) -> RoundHistory:
    history = RoundHistory()
    for one in rounds:
        history.observe(columns(*one), ())
    return history


def averages(rounds: list[tuple[int, int, int, int]]) -> dict[tuple[int, int, int], float]:
    """Tokens per row by (n, B, d), old weight 0.9, the first sample as it is."""
    found: dict[tuple[int, int, int], float] = {}
    for n, d, verified, accepted in rounds:
        key, value = (n, n + verified, d), (n + accepted) / (n + verified)
        found[key] = 0.9 * found[key] + 0.1 * value if key in found else value
    return found


def seconds_per_token(
    traits: DrafterTraits,
    cost: CostModel,
    n: int,
    rows: int,
    d: int,
    seen: dict[tuple[int, int, int], float],
) -> float:
    """J(n, B, d), with survival 1 at every depth, as no round has told otherwise."""
    step_s = cost.draft_s["x"][LADDER.index(n)]
    draft_s = {
        FAMILIES[0]: step_s[d],
        FAMILIES[1]: d * step_s[1],
        FAMILIES[2]: cost.feed_s["x"][rows] + max(d - 1, 0) * step_s[1],
        FAMILIES[3]: cost.feed_s["x"][rows] + step_s[K],
    }[traits]
    tokens = rows * seen.get((n, rows, d), 1.0)
    return float((cost.target_s[rows] + draft_s) / min(max(tokens, n), n * (d + 1)))


@settings(max_examples=40)
@given(random_rounds(), random_costs(), st.sampled_from(FAMILIES))
def test_decisions_agree_with_plain_loops(
    rounds: list[tuple[int, int, int, int]], cost: CostModel, traits: DrafterTraits
) -> None:
    ones = Drafts(np.ones((K, 1)), np.ones((K, 1)), np.ones(K))
    item = DrafterStatistics(traits, gain_model(estimates_of(ones), False), 1.0)
    snapshot = Snapshot(LADDER, 2, (item,), rounds=observed(rounds))
    limits = WorkerLimits(LADDER[-1], cost.max_rows, K)
    decision = parse("lightspec").decide(snapshot, cost, limits, Objective.THROUGHPUT)
    (found,) = decision.drafters
    seen = averages(rounds)
    lengths = {FAMILIES[2]: range(1, K + 1), FAMILIES[3]: range(K, K + 1)}.get(traits, range(K + 1))
    for step, n in enumerate(LADDER):
        best = {
            d: min(
                seconds_per_token(traits, cost, n, rows, d, seen)
                for rows in range(n, min(n * (1 + d), cost.max_rows) + 1)
            )
            for d in range(K + 1)
        }
        for d in range(K + 1):
            rows = n + int(found.verify_tokens[step, d])
            got = seconds_per_token(traits, cost, n, rows, d, seen)
            assert got == pytest.approx(best[d], rel=1e-8)
        chosen = int(found.draft_tokens[step])
        assert chosen in lengths
        assert best[chosen] == pytest.approx(min(best[d] for d in lengths), rel=1e-8)


@given(random_rounds())
def test_a_report_of_many_rounds_counts_like_many_reports(
    rounds: list[tuple[int, int, int, int]],
) -> None:
    single = [columns(*one) for one in rounds]
    together = RoundHistory()
    if single:
        names = RoundColumns.__dataclass_fields__
        together.observe(
            RoundColumns(**{k: np.concatenate([getattr(r, k) for r in single]) for k in names}), ()
        )
    for n in LADDER:
        expected = {key[1:]: value for key, value in averages(rounds).items() if key[0] == n}
        assert together.progress(n) == pytest.approx(expected)


def test_rounds_with_a_first_time_request_are_skipped_but_for_sparse_drafters() -> None:
    dense, sparse = RoundHistory(), RoundHistory(sparse=True)
    for history in (dense, sparse):
        history.observe(columns(2, 2, 2, 1, pool=2), ())
    assert dense.progress(2) == {}
    assert sparse.progress(2) == {(4, 2): 0.75}


def test_memory_is_bounded() -> None:
    history = RoundHistory(sparse=True)
    rows = column(range(1, 3001))
    made = make_rounds(3000, requests=1, carried=2)
    history.observe(
        RoundColumns(**{**{k: getattr(made, k) for k in made.__slots__}, "target_rows": rows}), ()
    )
    assert len(history.progress(1)) == 1024
    assert (3000, 2) in history.progress(1)


@given(st.floats(0.0, 1.0), st.integers(1, 60))
def test_depths_average_by_rounds(acceptance: float, rounds: int) -> None:
    """One report of R full rounds moves a depth as far as R rounds of its mean would."""
    history = RoundHistory()
    counts = Counts.zeros(1, 1)
    for value, count in ((1.0, 1), (acceptance, rounds)):
        counts.asked[:] = 1000
        counts.grid[:, 0, 0] = (1000, 1000, 1000 * value)
        made = make_rounds(count, requests=2, carried=1)
        history.observe(made, ((CellKey("x", "a"), counts),))
    expected = 0.9**rounds + (1 - 0.9**rounds) * acceptance
    assert history.survival(1)[0] == pytest.approx(expected)
