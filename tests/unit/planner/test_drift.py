"""A change of acceptance is noticed soon, noise and small errors are not, and what follows."""

import numpy as np
import pytest

from outrider_planner.core.drift import (
    TRUST_CUT,
    TRUST_DOUBLING_ROUNDS,
    Belief,
    DriftTest,
    Outcome,
)
from outrider_planner.core.evidence import Evidence
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import DrafterTraits
from tests.unit.planner.builders import make_rounds

K = 4
TRAITS = DrafterTraits("x", max_draft_tokens=K)
KEY = CellKey("x", "chat")


def chains(rng: np.random.Generator, count: int, conditional: float) -> Counts:
    """Outcomes of so many chains of K drafts, all verified."""
    hits = np.cumprod(rng.random((count, K)) < conditional, axis=1).sum(axis=0)
    counts = Counts.zeros(K)
    counts.asked[:] = counts.grid[0, :, 0] = counts.grid[1, :, 0] = count
    counts.grid[2, :, 0] = hits
    return counts


def outcome(counts: Counts, believed: float) -> Outcome:
    survival = believed ** np.arange(1.0, K + 1)
    return Outcome.of(counts.view(K, 1), Belief(survival[:, None], survival, survival), 500.0)


def rounds_until_change(requests: int, believed: float, true: float, most: int = 2000) -> int:
    rng, test = np.random.default_rng(7), DriftTest()
    for round_ in range(1, most + 1):
        if test.observe(outcome(chains(rng, requests, true), believed)):
            return round_
    return most


def test_the_variance_is_that_of_chains() -> None:
    rng = np.random.default_rng(0)
    totals = [chains(rng, 20, 0.7).accepted.sum() for _ in range(4000)]
    found = outcome(chains(rng, 20, 0.7), 0.7)
    assert found.predicted == pytest.approx(np.mean(totals), rel=0.02)
    # 1.5 for dispersion, and 1 + 20/500 for the prediction's own error.
    assert found.variance / (1.5 * 1.04) == pytest.approx(np.var(totals), rel=0.1)


@pytest.mark.parametrize(
    ("requests", "believed", "true", "most"),
    [(8, 0.8, 0.1, 10), (8, 0.1, 0.8, 10), (1, 0.8, 0.1, 60), (1, 0.1, 0.8, 60), (64, 0.8, 0.6, 4)],
)
def test_a_change_is_noticed_soon(requests: int, believed: float, true: float, most: int) -> None:
    assert rounds_until_change(requests, believed, true) <= most


@pytest.mark.parametrize("requests", [1, 8, 64])
@pytest.mark.parametrize("believed", [0.7, 0.02])
@pytest.mark.parametrize("ratio", [1.0, 0.97])
def test_neither_noise_nor_a_small_lasting_error_is_a_change(
    requests: int, ratio: float, believed: float
) -> None:
    """3 % less per position is some 8 % less in all: within half of the shift looked for."""
    assert rounds_until_change(requests, believed, believed * ratio) == 2000


def test_trust_is_cut_at_once_and_returns_with_rounds() -> None:
    test = DriftTest(fall=100.0)
    assert test.observe(Outcome(10.0, 1.0, 10.0, 5.0))
    assert (test.trust, test.events, test.fall) == (TRUST_CUT, 1, 0.0)
    test.recover(int(2 * TRUST_DOUBLING_ROUNDS))
    assert test.trust == pytest.approx(4 * TRUST_CUT)
    test.recover(10_000)
    assert test.trust == 1.0


def test_nothing_asked_is_no_evidence() -> None:
    test = DriftTest()
    assert not test.observe(outcome(Counts.zeros(K), 0.5))
    assert (test.rise, test.fall) == (0.0, 0.0)


def first_position(evidence: Evidence, slow: dict[tuple[str, str], Counts]) -> float:
    _, found = evidence.estimate(TRAITS, K, slow, {})
    return float(found.survival[0, 0, 0])


def fed(evidence: Evidence, rng: np.random.Generator, reports: int, conditional: float) -> int:
    """Reports of 8 rounds of 4 requests; the estimate is renewed after each."""
    changes = 0
    for _ in range(reports):
        rounds = make_rounds(8, requests=4, carried=K)
        changes += evidence.absorb(rounds, [(KEY, chains(rng, 32, conditional))])
        first_position(evidence, {})
    return changes


def test_after_a_change_older_evidence_counts_little() -> None:
    """Half a half-life after the shift the estimate is there; without the test it would not be."""
    rng, evidence = np.random.default_rng(1), Evidence()
    assert fed(evidence, rng, 40, 0.9) == 0
    assert fed(evidence, rng, 4, 0.2) >= 1
    assert first_position(evidence, {}) == pytest.approx(0.2, abs=0.08)
    assert 0.0 < evidence.trust(("x", "chat")) < 0.5
    assert fed(evidence, rng, 60, 0.2) == 0
    assert evidence.trust(("x", "chat")) == 1.0


def test_reports_should_come_early_until_trust_is_back() -> None:
    rng, evidence = np.random.default_rng(1), Evidence()
    fed(evidence, rng, 40, 0.9)
    before = evidence.unsettled
    fed(evidence, rng, 4, 0.2)
    during = evidence.unsettled
    fed(evidence, rng, 60, 0.2)
    assert (before, during, evidence.unsettled) == (False, True, False)


def test_a_distrusted_deployment_speaks_less_for_what_was_not_seen() -> None:
    rng, evidence = np.random.default_rng(2), Evidence()
    slow = {("x", "chat"): chains(rng, 5000, 0.9)}
    little = chains(rng, 4, 0.2)
    evidence.absorb(make_rounds(1, requests=4, carried=K), [(KEY, little)])
    trusted = first_position(evidence, slow)
    evidence.drifts["x", "chat"] = DriftTest(trust=TRUST_CUT)
    assert first_position(evidence, slow) < trusted - 0.2


def test_classes_are_judged_apart_and_forgotten_when_they_fade() -> None:
    rng, evidence = np.random.default_rng(3), Evidence()
    code = CellKey("x", "code")
    rounds = make_rounds(8, requests=8, carried=K)
    for reports in range(60):
        falls = 0.1 if reports >= 40 else 0.8
        evidence.absorb(rounds, [(KEY, chains(rng, 32, 0.8)), (code, chains(rng, 32, falls))])
        evidence.estimate(TRAITS, K, {}, {})
    assert evidence.drifts["x", "code"].events == 1
    assert evidence.drifts["x", "chat"].events == 0
    for _ in range(200):
        evidence.absorb(rounds, [(KEY, chains(rng, 64, 0.8))])
    assert ("x", "code") not in evidence.fast
    assert ("x", "code") not in evidence.drifts
