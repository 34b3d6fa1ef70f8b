"""How little evidence is completed: the order of cold cells, and unknown is not zero."""

import numpy as np
import pytest

from outrider_planner.core.blend import PRIOR_CONDITIONAL
from outrider_planner.core.histogram import Estimates, estimate
from outrider_planner.core.sums import Counts, batch_weight

K = 4


def counts(
    verified: int = 0, survival: tuple[float, ...] = (), bins: int = 1, bin_: int = 0
) -> Counts:
    made = Counts.zeros(K, bins)
    for j, value in enumerate(survival):
        made.grid[0, j, bin_] = made.grid[1, j, bin_] = verified
        made.grid[2, j, bin_] = verified * value
        made.asked[j] = verified
    return made


def believed(
    fast: Counts | None = None,
    slow: Counts | None = None,
    fleet: Counts | None = None,
    sparse: bool = False,
) -> Estimates:
    nothing = Counts.zeros(K, 1)
    return estimate([fast or nothing], [slow or nothing], fleet or nothing, sparse)


def survival(found: Estimates) -> np.ndarray:
    mean: np.ndarray = (found.survival[0] * found.bin_share[0]).sum(-1)
    return mean


def test_nothing_known_is_the_weak_prior() -> None:
    expected = PRIOR_CONDITIONAL ** np.arange(1, K + 1)
    assert survival(believed()) == pytest.approx(expected)


def test_own_evidence_comes_before_the_deployment_s_and_the_fleet_s() -> None:
    own, deployment, fleet = (counts(1000, (v,) * K) for v in (0.9, 0.5, 0.1))
    assert survival(believed(own, deployment, fleet))[0] == pytest.approx(0.9, abs=0.01)
    assert survival(believed(None, deployment, fleet))[0] == pytest.approx(0.5, abs=0.01)
    assert survival(believed(None, None, fleet))[0] == pytest.approx(0.1, abs=0.01)


def test_a_few_own_samples_move_a_known_deployment_only_a_little() -> None:
    deployment = counts(1000, (0.8,) * K)
    one_miss = counts(1, (0.0,))
    assert 0.7 < survival(believed(one_miss, deployment))[0] < 0.8


def test_positions_never_verified_continue_the_known_ones() -> None:
    """Verified to position 2 only: the deeper ones go on with the last conditional ratio."""
    found = survival(believed(counts(2000, (0.8, 0.64))))
    assert found == pytest.approx([0.8, 0.64, 0.512, 0.4096], rel=0.02)


def test_drafted_but_never_verified_is_unknown_and_not_zero() -> None:
    unverified = Counts.zeros(K, 1)
    unverified.grid[0] = 500
    unverified.asked[:] = 500
    assert survival(believed(unverified)) == pytest.approx(survival(believed()))


def test_bins_rise_and_empty_ones_lie_between_their_neighbours() -> None:
    own = counts(400, (0.2,), bins=5, bin_=0)
    own.grid[:, 0, 4] = (400, 400, 360)
    found = estimate([own], [Counts.zeros(K, 5)], Counts.zeros(K, 5), False).survival[0, 0]
    assert (np.diff(found) >= 0).all()
    assert found[0] == pytest.approx(0.2, abs=0.02)
    assert found[4] == pytest.approx(0.9, abs=0.02)
    assert found[0] < found[2] < found[4]


def test_length_survival_of_a_sparse_drafter_is_drafted_over_asked() -> None:
    own = counts(200, (0.5, 0.5))
    own.asked[:2] = 1000
    found = believed(own, sparse=True)
    assert found.length[0, :2] == pytest.approx([0.2, 0.2], abs=0.01)
    assert (np.diff(found.length[0]) <= 1e-12).all()
    dense = believed(own, sparse=False)
    assert dense.length[0].tolist() == [1.0] * K


def test_evidence_fades_by_half_in_64_drafting_rounds() -> None:
    own = counts(100, (0.5,))
    own.fade(64)
    assert own.verified[0, 0] == pytest.approx(50.0)
    own.fade(0)
    assert own.verified[0, 0] == pytest.approx(50.0)


@pytest.mark.parametrize("size", [1, 8, 64, 20_000])
def test_a_batch_of_any_size_weighs_no_more_than_the_steady_state(size: int) -> None:
    """Counted round by round or all at once: the same evidence."""
    by_round, at_once = Counts.zeros(K, 1), Counts.zeros(K, 1)
    for _ in range(min(size, 2000)):
        by_round.fade(1)
        by_round.add(counts(1, (1.0,)))
    at_once.add(counts(size, (1.0,)), batch_weight(size))
    assert at_once.verified[0, 0] == pytest.approx(by_round.verified[0, 0], rel=1e-6)


def test_classes_are_weighed_by_how_often_they_ask() -> None:
    often, seldom = counts(300, (0.9,)), counts(100, (0.1,))
    nothing = Counts.zeros(K, 1)
    found = estimate([often, seldom], [nothing, nothing], nothing, False)
    assert found.class_share == pytest.approx([0.75, 0.25])
    assert found.survival[0, 0, 0] > 0.85
    assert found.survival[1, 0, 0] < 0.15
