"""Worlds of acceptance keep their promises: survival as published, scores as good as they say."""

from dataclasses import replace

import numpy as np
import pytest

from outrider_planner.core.types import MAX_BINS
from outrider_planner.sim.acceptance import (
    CHAT,
    CODE,
    EDIT,
    MATH,
    PROSE,
    Domain,
    Drafter,
    Drafts,
    Spread,
    auc,
    extended,
    score_bins,
)
from outrider_planner.sim.scenarios import INFORMATIVE, PERFECT
from outrider_worker.speculate.scores import score_bin

COUNT = 40_000


def drawn(domain: Domain, spread: Spread, seed: int = 0) -> Drafts:
    rng = np.random.default_rng(seed)
    drafter = Drafter((domain,), spread, 7, rng)
    logits = spread.request * rng.standard_normal(COUNT)
    return drafter.draw(np.zeros(COUNT, dtype=np.int64), logits, 7)


@pytest.mark.parametrize("domain", [CHAT, CODE, MATH], ids=lambda domain: domain.name)
@pytest.mark.parametrize("token", [0.0, 1.2, 2.0])
def test_survival_is_the_published_one_however_much_tokens_differ(
    domain: Domain, token: float
) -> None:
    found = drawn(domain, Spread(token=token)).survival.mean(axis=0)
    assert found == pytest.approx(domain.survival, abs=0.006)


def test_deeper_positions_than_published_go_on_with_the_last_conditional() -> None:
    assert extended((0.8, 0.6), 4) == pytest.approx([0.8, 0.6, 0.45, 0.3375])


def test_survival_falls_along_every_chain() -> None:
    found = drawn(CODE, Spread()).survival
    assert (np.diff(found, axis=1) <= 0).all()
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_scores_are_as_good_as_their_noise_allows() -> None:
    """AUC 0.85 for the informative ones; the truth is better, nothing is worse than chance."""
    domains, rng = (CHAT, CODE, MATH), np.random.default_rng(3)
    informative = auc(Drafter(domains, INFORMATIVE, 7, rng))
    perfect = auc(Drafter(domains, PERFECT, 7, rng))
    useless = replace(INFORMATIVE, score_noise=float("inf"))
    assert informative == pytest.approx(0.85, abs=0.01)
    assert perfect > informative + 0.02
    # Even a score that means nothing falls with the position, as acceptance does.
    assert 0.5 < auc(Drafter(domains, useless, 7, rng)) < informative - 0.05


def test_bins_halve_twice_per_octave_and_never_leave_their_range() -> None:
    scores = np.array([0.99, 0.71, 0.70, 0.5, 0.49, 2**-7.6, 1e-9])
    assert score_bins(scores).tolist() == [15, 15, 14, 14, 13, 0, 0]
    assert MAX_BINS == 16


def test_bins_are_those_of_the_worker() -> None:
    scores = np.exp(np.random.default_rng(0).uniform(-7.0, 0.0, 500))
    assert score_bins(scores).tolist() == [score_bin(float(score)) for score in scores]


def test_a_sparse_drafter_often_has_nothing() -> None:
    prose, edit = drawn(PROSE, Spread()), drawn(EDIT, Spread())
    assert (prose.lengths > 0).mean() == pytest.approx(PROSE.hit, abs=0.01)
    assert (edit.lengths > 0).mean() == pytest.approx(EDIT.hit, abs=0.01)
    assert prose.lengths.mean() < edit.lengths.mean()


def test_bursts_stay_as_wide_as_they_are_and_last() -> None:
    spread = Spread(burst=1.0, burst_keep=0.9)
    drafter = Drafter((CODE,), spread, 7, np.random.default_rng(0))
    before = drafter.burst(np.random.default_rng(1).standard_normal(COUNT))
    after = drafter.burst(before)
    assert after.std() == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(before, after)[0, 1] == pytest.approx(0.9, abs=0.01)
