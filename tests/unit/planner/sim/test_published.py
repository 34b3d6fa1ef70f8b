"""The committed fit shows the published numbers, to within the residuals that are written down."""

import pytest

from outrider_planner.sim.published import FITS, LONG, SHORT, WORKLOADS, expected, workload


@pytest.mark.parametrize("place", range(len(WORKLOADS)), ids=[w.name for w in WORKLOADS])
def test_the_fit_shows_what_was_published(place: int) -> None:
    wanted, shown = WORKLOADS[place], expected(workload(FITS[place], LONG))
    assert shown.rows_divisor == pytest.approx(wanted.rows_divisor, rel=0.1)
    assert shown.throughput == pytest.approx(wanted.throughput, rel=0.05)
    assert shown.acceptance == pytest.approx(wanted.acceptance, abs=0.04)


def test_short_drafts_leave_less_to_gain_and_do_not_lose() -> None:
    assert 1.0 <= expected(workload(FITS[0], SHORT)).throughput < 1.2
