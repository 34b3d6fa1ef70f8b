"""Estimates within bounds whatever was counted, and sums that merge in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_planner.core.histogram import estimate
from outrider_planner.core.shares import most_weight
from outrider_planner.core.sums import (
    MOST_AMOUNT,
    MOST_BUCKETS,
    CellKey,
    Counts,
    from_fields,
    merge,
    to_fields,
    weigh,
)
from outrider_planner.core.types import MAX_DRAFT_TOKENS

K, BINS = 4, 3


@st.composite
def random_counts(draw: st.DrawFn) -> Counts:
    """accepted ≤ verified ≤ drafted, sparse and with holes."""
    counts = Counts.zeros(K, BINS)
    cells = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
    for j in range(K):
        for b in range(BINS):
            counts.grid[:, j, b] = sorted(draw(cells), reverse=True)
        counts.asked[j] = counts.drafted[j].sum() + draw(st.integers(0, 30))
    return counts


@given(st.lists(random_counts(), min_size=3, max_size=3), st.booleans())
def test_estimates_are_probabilities_that_fall_along_chains(
    counts: list[Counts], sparse: bool
) -> None:
    """Z06, for any sparse table."""
    fast, slow, fleet = counts
    found = estimate([fast], [slow], fleet, sparse)
    for table in (found.survival[0], found.length[0][:, None]):
        assert ((table >= 0) & (table <= 1)).all()
        assert (np.diff(table, axis=0) <= 1e-12).all()
    assert (np.diff(found.survival[0], axis=1) >= -1e-12).all(), "higher bins survive no less"
    assert found.bin_share.sum(axis=-1) == pytest.approx(np.ones((1, K)))
    assert np.isfinite(found.survival).all()


@given(st.lists(random_counts(), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_sums_merge_in_any_order(counts: list[Counts], random: object) -> None:
    """Z04: any number of writers in any order give the integers of one."""
    keys = [CellKey("ngram", "greedy", i % 2) for i in range(len(counts))]
    fields = [to_fields(key, each) for key, each in zip(keys, counts, strict=True)]
    in_order: dict[str, int] = {}
    shuffled: dict[str, int] = {}
    for each in fields:
        merge(in_order, each)
    random.shuffle(fields)  # type: ignore[attr-defined]
    for each in fields:
        merge(shuffled, each)
    assert shuffled == in_order
    assert all(isinstance(value, int) for value in in_order.values())


@given(random_counts())
def test_fields_survive_the_store(counts: Counts) -> None:
    key = CellKey("ngram", "sampled", 2)
    read = from_fields(weigh([to_fields(key, counts)]))
    if not counts.grid.any() and not counts.asked.any():
        assert read == {}
        return
    assert (read[key].asked[:K] == counts.asked).all()
    assert (read[key].grid[:, :K, :BINS] == counts.grid).all()
    assert read[key].asked.size == MAX_DRAFT_TOKENS


@given(st.text(max_size=40), st.one_of(st.just(float("nan")), st.floats(), st.integers()))
def test_foreign_fields_are_left_out(name: str, value: float) -> None:
    for counts in from_fields({name: value}).values():
        assert np.isfinite(counts.grid).all()
        assert np.isfinite(counts.asked).all()


@given(random_counts(), st.floats(0.0, 1.0))
def test_a_bounded_share_keeps_the_order_of_counts(counts: Counts, factor: float) -> None:
    bounded = counts.floored(factor)
    assert (np.diff(bounded.grid, axis=0) <= 0).all()
    assert (bounded.grid == np.floor(bounded.grid)).all()


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40))
def test_no_worker_gives_more_than_four_even_shares_of_what_counts(weights: list[float]) -> None:
    """However much it claims: the cap is part of what is left after capping, not of the claims."""
    cap = most_weight(weights)
    capped = [min(weight, cap) for weight in weights]
    assert max(capped) <= 4.0 / len(weights) * sum(capped) * (1 + 1e-9) or len(weights) <= 4
    if len(weights) <= 4:
        assert capped == weights


def test_a_louder_claim_buys_no_larger_share() -> None:
    honest = [100.0] * 15
    assert most_weight([*honest, 1e3]) == most_weight([*honest, 1e9]) == pytest.approx(500.0)


def test_activity_ages_buckets_and_quiet_nights_do_not() -> None:
    """A half-life of six hours is 24 non-empty buckets; empty ones do not count."""
    busy = weigh([{"x": 100}, *[{"y": 1}] * 23, {"x": 100}])
    assert busy["x"] == pytest.approx(150.0)
    quiet = weigh([{"x": 100}, *[{}] * 400, {"x": 100}])
    assert quiet["x"] == pytest.approx(100.0 + 100.0 * 2 ** (-1 / 24))


def test_buckets_beyond_those_that_are_read_have_no_weight() -> None:
    assert MOST_BUCKETS == 160
    whole = weigh([{"x": 1}] * (MOST_BUCKETS + 500))
    assert whole == weigh([{"x": 1}] * MOST_BUCKETS)
    assert whole["x"] > weigh([{"x": 1}] * (MOST_BUCKETS - 1))["x"]


def test_amounts_stay_within_what_every_store_holds_exactly() -> None:
    counts = Counts.zeros(K, BINS)
    counts.asked[0] = 2.0**62
    fields = to_fields(CellKey("ngram", "greedy"), counts)
    assert list(fields.values()) == [MOST_AMOUNT]
    merge(fields, dict(fields))
    assert list(fields.values()) == [MOST_AMOUNT]
