"""Context slopes: found where kernels differ from the table, and nowhere else."""

import numpy as np
import pytest

from outrider_planner.core.cost import CostTracker, request_ladder
from outrider_planner.core.curves import CurveSet
from outrider_planner.core.slopes import LEAST_RATIO, MOST_RATIO, ContextSlopes
from outrider_planner.core.types import CostCurve, CostTable, FloatArray, RoundColumns
from tests.unit.planner.builders import make_hello, make_table

TOKEN_S = 2e-7


def table_us(rows: int, context: float = 4000.0) -> int:
    """8 ms, 50 µs a row, and its context, as measured with one row per request."""
    return round(8000 + 50 * rows + TOKEN_S * 1e6 * rows * context)


def played(rng: np.random.Generator, rounds: int, sharing: float, noise: float) -> RoundColumns:
    """Rounds of different n and V at contexts around 4,000; ``sharing``: the part of the further
    rows' reading that is saved."""
    n = rng.integers(1, 33, rounds)
    carried = rng.integers(0, 4, rounds)
    rows = n * (1 + carried)
    context = 4000.0 + 500.0 * rng.standard_normal(rounds)
    read = n + (1.0 - sharing) * (rows - n)
    seconds = 8e-3 + 5e-5 * rows + TOKEN_S * context * read
    seconds *= np.exp(noise * rng.standard_normal(rounds))
    zeros = np.zeros(rounds, dtype=np.int64)
    return RoundColumns(
        requests=n,
        carried_draft_tokens=carried,
        pool_tokens=n * carried,
        target_rows=rows,
        bucket_rows=rows,
        request_context_tokens=(context * n).astype(np.int64),
        target_us=np.rint(seconds * 1e6).astype(np.int64),
        feed_us=zeros,
        draft_us=zeros,
        exposed_host_us=zeros,
        emitted_tokens=n,
        accepted_tokens=zeros,
        next_draft_tokens=carried,
    )


def tracker() -> CostTracker:
    rows = (1, 2, 4, 8, 16, 32, 64, 96, 128)
    contexts = (1000, 8000)
    curves = tuple(CostCurve(c, rows, tuple(table_us(r, c) for r in rows)) for c in contexts)
    table = CostTable(curves, make_table().drafters)
    hello = make_hello(requests=32, table=table)
    return CostTracker(hello, request_ladder(32))


def predicted(found: CostTracker) -> tuple[FloatArray, FloatArray]:
    """T of n requests without drafts, and with three each, by step of n from 1 to 32."""
    model = found.model()
    assert model is not None
    n = np.array(model.ladder)
    return model.target_s[n] + model.context_s, model.target_s[4 * n] + model.context_s


def true_s(rows_per_request: int, sharing: float) -> FloatArray:
    n = np.array(request_ladder(32), dtype=np.float64)
    read = n * (1.0 + (1.0 - sharing) * (rows_per_request - 1))
    result: FloatArray = 8e-3 + 5e-5 * n * rows_per_request + TOKEN_S * 4000.0 * read
    return result


@pytest.mark.parametrize("sharing", [0.0, 1.0])
def test_passes_are_priced_right_whether_rows_share_their_context_or_not(sharing: float) -> None:
    found, rng = tracker(), np.random.default_rng(0)
    for _ in range(40):
        found.observe(played(rng, 32, sharing, noise=0.02))
    plain, drafted = predicted(found)
    assert plain == pytest.approx(true_s(1, sharing), rel=0.03)
    assert drafted == pytest.approx(true_s(4, sharing), rel=0.03)


def test_slopes_are_those_of_a_ridge_regression() -> None:
    """Around the means, in units of them, with one ridge for both (Hoerl and Kennard 1970)."""
    rounds = played(np.random.default_rng(5), 96, 0.7, noise=0.02)
    table_s = np.array([table_us(int(row)) for row in rounds.bucket_rows]) * 1e-6
    slopes = ContextSlopes(most_s=1.0)
    slopes.observe(rounds, table_s)
    tokens = rounds.request_context_tokens
    parts = np.stack([tokens, tokens * rounds.target_rows / rounds.requests], axis=1)
    parts = parts / table_s[:, None]
    error = rounds.target_us * 1e-6 / table_s - 1.0
    weights = 2.0 ** (-np.arange(95, -1, -1.0) / 256.0)
    scale = np.average(parts, axis=0, weights=weights)
    x = parts / scale - 1.0
    y = error - np.average(error, weights=weights)
    ridge = 0.03**2 * (1.0 + 64.0 / weights.sum()) * np.eye(2)
    covariance, moment = (x.T * weights) @ x, (x.T * weights) @ y
    expected = np.linalg.solve(covariance / weights.sum() + ridge, moment / weights.sum()) / scale
    assert (slopes.request_s, slopes.row_s) == pytest.approx(tuple(expected), rel=1e-9)


def test_slopes_differ_in_sign_where_rows_share_a_reading() -> None:
    found, rng = tracker(), np.random.default_rng(1)
    for _ in range(40):
        found.observe(played(rng, 32, 1.0, noise=0.02))
    assert found.slopes.row_s < -0.3 * TOKEN_S
    assert found.slopes.request_s > 0.3 * TOKEN_S


def test_a_slower_machine_is_no_slope() -> None:
    """30 % slower everywhere, at one load and at many: the buckets say so, not the context."""
    rng = np.random.default_rng(2)
    rounds = played(rng, 512, 0.0, noise=0.02)
    rounds.target_us[:] = (1.3 * rounds.target_us).astype(np.int64)
    found = tracker()
    found.observe(rounds)
    plain, drafted = predicted(found)
    assert plain == pytest.approx(1.3 * true_s(1, 0.0), rel=0.04)
    assert drafted == pytest.approx(1.3 * true_s(4, 0.0), rel=0.04)


def test_one_load_at_one_context_tells_no_slope() -> None:
    slopes, rng = ContextSlopes(most_s=TOKEN_S), np.random.default_rng(3)
    rounds = played(rng, 512, 1.0, noise=0.0)
    for column in (rounds.requests, rounds.target_rows, rounds.bucket_rows):
        column[:] = column[0]
    rounds.request_context_tokens[:] = 4000 * rounds.requests
    rounds.target_us[:] = rounds.target_us[0]
    slopes.observe(rounds, np.full(512, 1e-2))
    assert (slopes.request_s, slopes.row_s) == pytest.approx((0.0, 0.0), abs=1e-12)


def test_a_table_of_one_context_has_no_slopes() -> None:
    """Rows that turn out dearer are dearer rows: nothing is blamed on context."""
    slopes, rng = (
        ContextSlopes(CurveSet.of(make_table().target).token_s()),
        np.random.default_rng(4),
    )
    slopes.observe(played(rng, 512, 1.0, noise=0.02), np.full(512, 1e-2))
    assert (slopes.request_s, slopes.row_s) == (0.0, 0.0)


def test_no_fit_makes_a_pass_free_or_endless() -> None:
    slopes, table_s = ContextSlopes(1.0, request_s=1.0, row_s=-1.0), np.array([1e-2, 2e-2])
    rows = np.array([1.0, 2.0])
    assert slopes.by_rows(rows, 1e6, table_s) == pytest.approx(LEAST_RATIO * table_s)
    assert slopes.by_requests(rows, 1e6, table_s) == pytest.approx(MOST_RATIO * table_s)
