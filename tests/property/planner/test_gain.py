"""G(n, d, V): its definition, its shape, and expectations over sparse pools."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_planner.core import gain, pools
from outrider_planner.core.gain import GainModel, gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.isotonic import isotonic
from outrider_planner.core.pools import Pool, TabulatedPool, sparse_pool
from tests.property.planner.reference import Drafts, non_increasing

unit = st.floats(0.0, 1.0, allow_nan=False)


def estimates_of(drafts: Drafts) -> Estimates:
    return Estimates(
        survival=drafts.survival[None],
        length=drafts.length[None],
        bin_share=drafts.share[None],
        class_share=np.ones(1),
        verified=1.0,
    )


@st.composite
def random_drafts(
    draw: st.DrawFn, positions: int = 3, bins: int = 2, sparse: bool = False
) -> Drafts:
    """Any calibrated map: rising with the bin, falling along the chain."""
    raw = np.array(draw(st.lists(unit, min_size=positions * bins, max_size=positions * bins)))
    survival: np.ndarray = np.sort(raw.reshape(positions, bins), axis=1)
    survival = np.minimum.accumulate(survival, axis=0)
    share: np.ndarray = np.array(
        draw(st.lists(st.floats(0.05, 1), min_size=positions * bins, max_size=positions * bins))
    ).reshape(positions, bins)
    share /= share.sum(axis=1, keepdims=True)
    length: np.ndarray = np.ones(positions)
    if sparse:
        steps = draw(st.lists(st.floats(0.05, 1.0), min_size=positions, max_size=positions))
        length = np.cumprod(steps)
    return Drafts(survival, share, length)


def curve(model: GainModel, n: int) -> np.ndarray:
    verify = np.arange(n * model.positions + 1, dtype=float)
    return model.accepted(n, pool_of(model, n), verify)


def pool_of(model: GainModel, n: int) -> Pool:
    return model.pool(n)


@given(random_drafts(), st.integers(1, 4))
def test_dense_gain_equals_its_definition(drafts: Drafts, n: int) -> None:
    found = curve(gain_model(estimates_of(drafts), sparse=False), n)
    for d in range(1, 4):
        for verify in range(n * d + 1):
            assert found[d - 1, verify] == pytest.approx(drafts.gain(n, d, verify), abs=1e-9)


@given(random_drafts(positions=4, bins=5), st.lists(st.integers(2, 90), min_size=1, max_size=3))
def test_many_candidates_at_once_gain_what_a_few_at_a_time_do(
    drafts: Drafts, requests: list[int]
) -> None:
    """A full pool's best-first curve is a line through its levels, and may be read off as one."""
    model, n = gain_model(estimates_of(drafts), sparse=False), np.array(requests)
    verify = np.tile(np.arange(400.0), (n.size, 1))
    whole = model.accepted(n, model.pool(n), verify)
    parts = [
        model.accepted(n, model.pool(n), verify[:, first : first + 100])
        for first in range(0, 400, 100)
    ]
    np.testing.assert_allclose(whole, np.concatenate(parts, axis=-1), rtol=1e-12, atol=1e-12)


@settings(max_examples=25)
@given(random_drafts(sparse=True), st.integers(1, 3))
def test_sparse_gain_equals_enumeration(drafts: Drafts, n: int) -> None:
    found = curve(gain_model(estimates_of(drafts), sparse=True), n)
    for d in range(1, 4):
        for verify in range(n * d + 1):
            assert found[d - 1, verify] == pytest.approx(drafts.gain(n, d, verify), abs=1e-9)


@given(
    random_drafts(positions=5, bins=6, sparse=True),
    st.sampled_from([1, 2, 5, 16, 17, 40]),
    st.booleans(),
)
def test_gain_has_the_promised_shape(drafts: Drafts, n: int, sparse: bool) -> None:
    """0 at V = 0, non-decreasing, concave, at most V; end value n · mean accepted."""
    model = gain_model(
        estimates_of(drafts if sparse else Drafts(drafts.survival, drafts.share, np.ones(5))),
        sparse,
    )
    found = curve(model, n)
    verify = np.arange(found.shape[1])
    slack = 1e-6 * n
    assert np.abs(found[:, 0]).max() <= slack
    assert (np.diff(found, axis=1) >= -slack).all()
    # The normal approximation of large sparse pools is tabulated: concave up to its steps.
    assert (np.diff(found, n=2, axis=1) <= (5e-3 if sparse and n > 24 else slack)).all()
    assert (found <= verify + slack).all()
    for d in range(1, 6):
        mean = sum(
            model.length_survival[j] * float(drafts.survival[j] @ drafts.share[j]) for j in range(d)
        )
        assert found[d - 1, n * d] == pytest.approx(n * mean, rel=1e-6, abs=slack)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("n", [4, 32])
def test_few_chords_are_close_to_the_whole_curve(
    n: int, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 positions and 16 bins, from a quarter of a row per request on."""
    survival = np.linspace(0.1, 0.95, 16) * 0.9 ** np.arange(16)[:, None]
    share = np.full((16, 16), 1 / 16)
    drafts = Drafts(survival, share, 0.7 ** np.arange(1, 17) if sparse else np.ones(16))
    few = curve(gain_model(estimates_of(drafts), sparse), n)[:, n // 4 :]
    for name in ("LEVELS_SPARSE", "LEVELS_DENSE"):
        monkeypatch.setattr(gain, name, 128)
    whole = curve(gain_model(estimates_of(drafts), sparse), n)[:, n // 4 :]
    assert few == pytest.approx(whole, rel=0.03)


@given(random_drafts(positions=4, bins=3))
def test_flat_and_best_first_agree_where_everything_is_verified(drafts: Drafts) -> None:
    model = gain_model(estimates_of(drafts), sparse=False)
    n = 3
    for d in range(1, 5):
        at_end = np.array([float(n * d)])
        flat = model.flat_steps @ pool_of(model, n).expected_min(at_end[None, :])
        assert model._top(pool_of(model, n), at_end[None, :])[d - 1] == pytest.approx(
            flat[d - 1], abs=1e-9
        )


@given(random_drafts(positions=6, bins=1), st.integers(2, 40))
def test_without_scores_there_is_nothing_to_pick(drafts: Drafts, n: int) -> None:
    """One bin per position: the gain of n requests is n times the gain of one."""
    model = gain_model(estimates_of(drafts), sparse=False)
    one, many = curve(model, 1), curve(model, n)
    assert many[:, ::n] == pytest.approx(n * one, abs=1e-8)


@given(random_drafts(positions=4, bins=1, sparse=True), st.integers(1, 16))
def test_pool_expectations_stay_below_jensen(drafts: Drafts, n: int) -> None:
    """E[min(V, m)] is at most min(V, E[m]), and reaches E[m] at n·d."""
    x = np.arange(4.0 * n + 1)
    pool = sparse_pool(n, drafts.length)
    found = pool.expected_min(x[None, :])
    mean = n * np.cumsum(drafts.length)
    assert (found <= np.minimum(x[None, :], mean[:, None]) + 1e-9).all()
    assert found[:, -1] == pytest.approx(mean, rel=1e-9)


@given(
    random_drafts(positions=4, bins=1, sparse=True),
    st.sampled_from([(25, 0.08), (40, 0.05), (64, 0.04)]),
)
def test_normal_pool_is_close_to_the_convolution(drafts: Drafts, case: tuple[int, float]) -> None:
    """Relative to the mean pool, for any distribution of lengths, and the closer the larger n."""
    n, limit = case
    exact = TabulatedPool(pools._convolved(np.array(n), pools._length_masses(drafts.length)))
    normal = sparse_pool(n, drafts.length)
    assert isinstance(normal, pools.NormalPool)
    x = np.arange(4.0 * n + 1)[None, :]
    mean = n * np.cumsum(drafts.length)[:, None]
    error = np.abs(normal.expected_min(x) - exact.expected_min(x)) / mean
    assert error.max() < limit
    assert error[:, [0, -1]].max() < 1e-3


@given(
    st.lists(st.tuples(unit, st.floats(0.1, 9.0)), min_size=1, max_size=9),
)
def test_isotonic_equals_pool_adjacent_violators(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    expected = non_increasing(list(values[::-1]), list(weights[::-1]))[::-1]
    assert isotonic(values, weights) == pytest.approx(np.array(expected), abs=1e-9)
