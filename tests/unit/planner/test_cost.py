"""The cost table as arrays, and how measured rounds correct it."""

import numpy as np
import pytest

from outrider_planner.core.cost import RESIDUAL_CLIP, CostTracker
from outrider_planner.core.curves import CurveSet, padded, pooled
from outrider_planner.core.types import CostCurve
from tests.unit.planner.builders import make_hello, make_rounds, make_table, target_us


def tracker(**changes: object) -> CostTracker:
    hello = make_hello(requests=4, max_draft=4, **changes)  # type: ignore[arg-type]
    return CostTracker(hello, (1, 2, 3, 4))


def test_rows_between_measured_ones_are_linear() -> None:
    model = tracker().model()
    assert model is not None
    assert model.max_rows == 128
    for rows in (1, 5, 7, 100, 128):
        assert model.target_s[rows] == pytest.approx(target_us(rows) * 1e-6)
    assert model.target_s[0] == 0.0
    assert model.off_rate()[1] == pytest.approx(2 / 12e-3)


def test_drafting_costs_by_length_and_nothing_for_none() -> None:
    model = tracker().model()
    assert model is not None
    assert model.draft_s["ngram"][0] == pytest.approx(np.arange(5) * 200e-6)


def test_padded_rows_cost_the_cheapest_bucket_that_holds_them() -> None:
    """One may always pad up: a real dip is used by all row counts below it."""
    known = np.array([4, 8, 16])
    found = padded(known, np.array([10.0, 20.0, 15.0]), np.arange(18))
    assert found[[0, 4, 5, 8, 9, 16]].tolist() == [10.0, 10.0, 15.0, 15.0, 15.0, 15.0]
    assert np.isinf(found[17])


def test_small_dips_are_noise_and_levelled() -> None:
    found = pooled(np.array([10.0, 10.2, 10.0, 12.0]))
    assert found.tolist() == pytest.approx([10.0, 10.1, 10.1, 12.0])


def test_where_nothing_is_padded_more_rows_are_never_cheaper() -> None:
    """One row was measured on a busy machine: off must not look dear for it."""
    table = make_table(target=lambda rows: 14_000 if rows == 1 else target_us(rows))
    costs = tracker(table=table)
    model = costs.model()
    assert model is not None
    assert (np.diff(model.target_s[1:]) >= 0.0).all()
    assert model.target_s[1] < 14_000e-6
    costs.observe(make_rounds(64, requests=1, carried=0))
    corrected = costs.model()
    assert corrected is not None
    assert corrected.target_s[1] == pytest.approx(target_us(1) * 1e-6, rel=0.01)


def test_context_is_interpolated_between_measured_lengths() -> None:
    curves = CurveSet.of(
        [CostCurve(4096, (1, 2), (200, 400)), CostCurve(1024, (1, 2, 3), (100, 200, 300))]
    )
    assert curves.at(2560.0) == pytest.approx([150e-6, 300e-6])
    assert curves.at(0.0) == pytest.approx([100e-6, 200e-6])
    assert curves.at(1e9) == pytest.approx([200e-6, 400e-6])


def test_a_slower_machine_is_learned_from_its_rounds() -> None:
    costs = tracker()
    rounds = make_rounds(400, requests=2, carried=1, target_us=2 * target_us(4))
    costs.observe(rounds)
    model = costs.model()
    assert model is not None
    assert model.target_s[4] == pytest.approx(2 * target_us(4) * 1e-6, rel=0.1)
    # Row counts that never ran follow the common residual.
    assert model.target_s[64] == pytest.approx(2 * target_us(64) * 1e-6, rel=0.15)
    assert costs.clips == 0


def test_residuals_are_clipped_and_clips_are_counted() -> None:
    costs = tracker()
    rounds = make_rounds(64, requests=2, carried=1, target_us=100 * target_us(4))
    costs.observe(rounds)
    model = costs.model()
    assert model is not None
    assert costs.clips == 64
    assert model.target_s[4] <= target_us(4) * 1e-6 * np.exp(RESIDUAL_CLIP)


def test_a_noisy_minute_is_forgotten_also_where_nothing_runs_any_more() -> None:
    """Rounds of 6 rows took three times as long; then only rounds of 2 rows run, as measured."""
    costs = tracker()
    costs.observe(make_rounds(800, target_us=3 * target_us(6), exposed_host_us=5_000))
    noisy = costs.model()
    for _ in range(700):
        costs.observe(make_rounds(16, requests=2, carried=0))
    quiet = costs.model()
    assert noisy is not None
    assert quiet is not None
    table = np.array([target_us(rows) * 1e-6 for rows in range(1, 129)])
    assert noisy.target_s[6] > 2.5 * target_us(6) * 1e-6
    assert quiet.target_s[1:] == pytest.approx(table, rel=0.05)
    assert quiet.host_s == pytest.approx(np.full(4, 100e-6), rel=0.5)


def test_rounds_of_one_batch_age_among_themselves() -> None:
    """20,000 rounds at once weigh no more than the steady state: 200 later ones outvote them."""
    costs = tracker()
    costs.observe(make_rounds(20_000, target_us=2 * target_us(6)))
    costs.observe(make_rounds(200))
    model = costs.model()
    assert model is not None
    assert model.target_s[6] == pytest.approx(target_us(6) * 1e-6, rel=0.1)


def test_exposed_host_time_is_learned_by_n() -> None:
    costs = tracker()
    costs.observe(make_rounds(8, requests=1, exposed_host_us=100))
    costs.observe(make_rounds(8, requests=3, exposed_host_us=300))
    model = costs.model()
    assert model is not None
    # Each is drawn a little to the mean of all.
    assert model.host_s == pytest.approx([100e-6, 200e-6, 300e-6, 300e-6], rel=0.15)
    assert model.host_s[1] == pytest.approx((model.host_s[0] + model.host_s[2]) / 2)


def test_without_a_table_there_is_no_model() -> None:
    hello = make_hello()
    costs = CostTracker(make_hello(cost_table=None), (1, 2))
    assert hello.cost_table is not None
    assert not costs.has_table
    assert costs.model() is None
    costs.observe(make_rounds(4, requests=1))
    assert costs.model() is None


def test_padded_workers_search_bucket_edges_only() -> None:
    table = make_table(rows=(8, 16, 32, 64, 128), max_draft=4)
    costs = tracker(table=table, pads_rows=True, row_buckets=(8, 16, 32, 64, 128))
    model = costs.model()
    assert model is not None
    assert model.edges == (8, 16, 32, 64, 128)
    assert model.target_s[3] == model.target_s[8]
    assert model.target_s[9] == model.target_s[16]
