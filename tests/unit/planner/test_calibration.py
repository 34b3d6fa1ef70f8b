"""Useless scores are found out, useful ones taken up again, and calibration errors are shown."""

import numpy as np
import pytest

from outrider_planner.core.calibration import LEAST_DRAFTS, Calibration, raw_survival
from outrider_planner.core.evidence import Evidence
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import MAX_BINS, DrafterCost, DrafterTraits
from tests.unit.planner.builders import make_rounds

K = 3
TRAITS = DrafterTraits("x", DrafterCost.AUTOREGRESSIVE, score_bins=MAX_BINS, max_draft_tokens=K)


def drawn(rng: np.random.Generator, chains: int, telling: float) -> Counts:
    """Chains whose bins tell their survival, or nothing (``telling`` 0)."""
    counts = Counts.zeros(K)
    quality = rng.random(chains)
    seen = telling * quality + (1 - telling) * rng.random(chains)
    bins = np.minimum((MAX_BINS * seen).astype(int), MAX_BINS - 1)
    accepted = np.cumprod(rng.random((chains, K)) < quality[:, None] ** 0.5, axis=1)
    for j in range(K):
        counts.grid[0, j] = counts.grid[1, j] = np.bincount(bins, minlength=MAX_BINS)
        counts.grid[2, j] = np.bincount(bins, weights=accepted[:, j], minlength=MAX_BINS)
    counts.asked[:] = chains
    return counts


def fed(evidence: Evidence, rng: np.random.Generator, reports: int, telling: float) -> None:
    for _ in range(reports):
        rounds = make_rounds(8, requests=4, carried=K)
        evidence.absorb(rounds, [(CellKey("x", "chat"), drawn(rng, 32, telling))])
        evidence.estimate(TRAITS, K, {}, {})


def spread(evidence: Evidence) -> float:
    """By how much the bins of the first position differ in what is planned with."""
    _, found = evidence.estimates["x"]
    return float(np.ptp(found.survival[0, 0]))


def test_useless_scores_are_given_up_and_plans_go_by_position() -> None:
    rng, evidence = np.random.default_rng(0), Evidence()
    fed(evidence, rng, 40, telling=0.0)
    assert not evidence.calibrations["x"].useful
    assert spread(evidence) == 0.0
    _, found = evidence.estimates["x"]
    assert found.survival[0, :, 0] == pytest.approx([2 / 3, 1 / 2, 2 / 5], abs=0.06)


def test_telling_scores_stay_in_use() -> None:
    rng, evidence = np.random.default_rng(1), Evidence()
    fed(evidence, rng, 40, telling=1.0)
    assert evidence.calibrations["x"].useful
    assert spread(evidence) > 0.4


def test_telling_scores_stay_in_use_though_reports_are_short() -> None:
    """Of few drafts the mean knows their scores; it is not what plans would go by without them."""
    rng, evidence = np.random.default_rng(5), Evidence()
    used = []
    for _ in range(600):
        rounds = make_rounds(1, requests=1, carried=K)
        evidence.absorb(rounds, [(CellKey("x", "chat"), drawn(rng, 1, telling=0.8))])
        evidence.estimate(TRAITS, K, {}, {})
        used.append(evidence.calibrations["x"].useful if evidence.calibrations else True)
    assert np.mean(used) > 0.9


def test_scores_that_begin_to_tell_are_taken_up_again() -> None:
    rng, evidence = np.random.default_rng(2), Evidence()
    fed(evidence, rng, 40, telling=0.0)
    assert not evidence.calibrations["x"].useful
    fed(evidence, rng, 120, telling=1.0)
    assert evidence.calibrations["x"].useful


def test_little_evidence_condemns_nobody() -> None:
    calibration = Calibration()
    counts = drawn(np.random.default_rng(3), int(LEAST_DRAFTS / K) - 1, 0.0)
    believed = np.full((K, MAX_BINS), 0.5)
    calibration.observe(counts.verified, counts.accepted, believed, believed[:, 0])
    assert calibration.useful
    calibration.observe(counts.verified, counts.accepted, believed, believed[:, 0])
    assert calibration.useful is False  # a plain truth value: it is shown as JSON


def test_calibration_errors_are_those_computed_by_hand() -> None:
    """100 drafts in bin 15, 60 accepted; 50 in bin 13, 30 accepted."""
    calibration = Calibration()
    verified, accepted = np.zeros((1, MAX_BINS)), np.zeros((1, MAX_BINS))
    verified[0, [15, 13]], accepted[0, [15, 13]] = (100, 50), (60, 30)
    believed = np.zeros((1, MAX_BINS))
    believed[0, [15, 13]] = (0.7, 0.5)
    calibration.observe(verified, accepted, believed, np.array([0.6]))
    assert calibration.error_after() == pytest.approx((10 + 5) / 150)
    raw = abs(100 * 2**-0.25 - 60) + abs(50 * 2**-1.25 - 30)
    assert calibration.error_before(TRAITS) == pytest.approx(raw / 150)
    assert raw_survival()[[15, 13]] == pytest.approx([2**-0.25, 2**-1.25])


def test_lengths_of_matches_are_no_probabilities() -> None:
    calibration = Calibration()
    assert calibration.error_after() is None
    half = np.full((1, MAX_BINS), 0.5)
    calibration.observe(half, half, half, half[:, 0])
    assert calibration.error_before(DrafterTraits("ngram", score_bins=MAX_BINS)) is None
    assert calibration.error_before(TRAITS) is not None


def test_calibration_fades_with_drafting_rounds() -> None:
    rng, evidence = np.random.default_rng(4), Evidence()
    fed(evidence, rng, 20, telling=1.0)
    calibration = evidence.calibrations["x"]
    calibration.fade(100_000)
    assert calibration.error_after() is None
    assert calibration.useful, "no news is no verdict"
