"""G learned from picked rows, where requests and tokens differ: near the truth at every V."""

from functools import cache

import numpy as np
import pytest

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import Estimates, estimate, flattened
from outrider_planner.core.search import decide
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import MAX_BINS
from outrider_planner.sim.acceptance import CHAT, CODE, Drafter, Spread

K = 7
DOMAINS = (CODE, CHAT)
NOTHING = Counts.zeros(K)


class Rounds:
    """Rounds of n requests, all drawn anew: true survival and score bins, (R, K, n)."""

    def __init__(self, drafter: Drafter, rng: np.random.Generator, n: int, rounds: int) -> None:
        domain = rng.integers(0, len(DOMAINS), n * rounds)
        logits = drafter.spread.request * rng.standard_normal(n * rounds)
        drafts = drafter.draw(domain, logits, K)
        shape = (rounds, n, K)
        self.survival = drafts.survival.reshape(shape).transpose(0, 2, 1)
        self.bins = drafts.bins.reshape(shape).transpose(0, 2, 1)
        self.position = np.broadcast_to(np.arange(K)[:, None], self.bins.shape)

    def order(self, survival_map: np.ndarray) -> np.ndarray:
        """Drafts by their score in the map, best first; of equals the earlier position. A chain's
        scores fall, as workers see to."""
        scores = np.minimum.accumulate(survival_map[self.position, self.bins], axis=1)
        order: np.ndarray = np.argsort(-scores.reshape(len(scores), -1), axis=1, kind="stable")
        return order

    def count(self, into: Counts, survival_map: np.ndarray, verify: int) -> None:
        """Verifies V a round. Accepted are counted by expectation, so that nothing is luck."""
        chosen = np.zeros(self.bins.reshape(len(self.bins), -1).shape, dtype=bool)
        np.put_along_axis(chosen, self.order(survival_map)[:, :verify], True, axis=1)
        mask = chosen.reshape(self.bins.shape)
        cells = self.position * MAX_BINS + self.bins
        for kind, of, worth in (
            (0, np.ones(mask.shape, dtype=bool), None),
            (1, mask, None),
            (2, mask, self.survival[mask]),
        ):
            found = np.bincount(cells[of], weights=worth, minlength=K * MAX_BINS)
            into.grid[kind] += found.reshape(K, MAX_BINS)
        into.asked += self.bins.shape[0] * self.bins.shape[2]

    def accepted(self, survival_map: np.ndarray) -> np.ndarray:
        """The true mean of accepted drafts of a round for every V, (n·K,)."""
        worth = self.survival.reshape(len(self.survival), -1)
        picked = np.take_along_axis(worth, self.order(survival_map), axis=1)
        curve: np.ndarray = np.cumsum(picked, axis=1).mean(axis=0)
        return curve


def learned(n: int, verify: int, rng: np.random.Generator, spread: Spread) -> Estimates:
    """What is believed after rounds that verified the V best by what was believed before."""
    drafter = Drafter(DOMAINS, spread, K, rng)
    counts = Counts.zeros(K)
    found = estimate([counts], [NOTHING], NOTHING, False)
    for _ in range(6):
        Rounds(drafter, rng, n, max(4000 // n, 100)).count(counts, found.survival[0], verify)
        found = estimate([counts], [NOTHING], NOTHING, False)
    return found


@cache
def errors(n: int, share: float) -> tuple[float, np.ndarray]:
    """Relative errors of G after verifying that share: at its own V, and elsewhere."""
    rng, spread = np.random.default_rng(n), Spread()
    visited = max(round(share * n * K), 1)
    found = learned(n, visited, rng, spread)
    drafter = Drafter(DOMAINS, spread, K, rng)
    truth = Rounds(drafter, rng, n, max(60_000 // n, 400)).accepted(found.survival[0])
    verify = np.arange(1, n * K + 1)
    model = gain_model(found, False)
    error = model.accepted(n, model.pool(n), verify.astype(float))[K - 1] / truth - 1.0
    return float(error[visited - 1]), error[max(n // 2, 1) - 1 :]


@pytest.mark.parametrize("share", [0.15, 0.4, 0.7])
@pytest.mark.parametrize("n", [1, 2, 8, 96])
def test_gain_learned_from_picked_rows_is_near_the_truth(n: int, share: float) -> None:
    """Within 2 % at the V that was visited, and within 12 % at any other from n/2 to n·K."""
    at_visited, elsewhere = errors(n, share)
    assert abs(at_visited) <= 0.02
    assert np.abs(elsewhere).max() <= 0.12


def test_position_means_of_picked_rows_would_be_far_off() -> None:
    """The bias that the bins take out: what was verified are the lucky ones."""
    rng = np.random.default_rng(1)
    drafter, counts = Drafter(DOMAINS, Spread(), K, rng), Counts.zeros(K)
    found = learned(96, 200, rng, Spread())
    rounds = Rounds(drafter, rng, 96, 100)
    rounds.count(counts, found.survival[0], 200)
    by_position = counts.accepted.sum(axis=1) / counts.verified.sum(axis=1)
    truth = rounds.survival.mean(axis=(0, 2))
    means = (found.survival[0] * found.bin_share[0]).sum(axis=1)
    assert by_position[1] > 1.15 * truth[1]
    assert means[:3] == pytest.approx(truth[:3], rel=0.05)


def test_where_scores_are_noise_gain_by_position_means_is_near_the_truth() -> None:
    """From 64 rounds with real luck, what a worker has at any time; nothing is picked by noise."""
    rng, spread, n = np.random.default_rng(2), Spread(score_noise=float("inf")), 8
    counts, drafter = Counts.zeros(K), Drafter(DOMAINS, spread, K, rng)
    rounds = Rounds(drafter, rng, n, 64)
    rounds.survival = (rng.random((64, 1, n)) < rounds.survival).astype(float)
    rounds.count(counts, np.ones((K, MAX_BINS)), n * K)
    flat = flattened(estimate([counts], [NOTHING], NOTHING, False))
    assert np.ptp(flat.survival, axis=-1).max() == 0.0
    truth = Rounds(drafter, rng, n, 2000).accepted(flat.survival[0])
    verify, model = np.arange(1, n * K + 1), gain_model(flat, False)
    found = model.accepted(n, model.pool(n), verify.astype(float))[K - 1]
    assert found == pytest.approx(truth, rel=0.1)


def test_a_sparse_drafter_stays_on_where_the_expectation_over_its_pool_pays() -> None:
    """n = 1, dear rows: priced at V it seems to lose, and gains by half in truth."""
    rng, hit, reach, accept = np.random.default_rng(3), 0.35, 0.97, 0.92
    lengths = np.where(rng.random(20_000) < hit, rng.geometric(1 - reach, 20_000), 0).clip(0, K)
    counts, position = Counts.zeros(K), np.arange(K)
    counts.grid[0, :, 0] = counts.grid[1, :, 0] = (lengths[:, None] > position).sum(axis=0)
    counts.grid[2, :, 0] = counts.grid[0, :, 0] * accept ** (position + 1)
    counts.asked += lengths.size
    model = gain_model(
        estimate([counts.view(K, 1)], [NOTHING.view(K, 1)], NOTHING.view(K, 1), True), True
    )
    target_s = np.array([0.0, *(0.010 + 0.0035 * np.arange(K + 1))])
    free = {"x": np.zeros((1, K + 1))}
    cost = CostModel((1,), target_s, {"x": np.zeros(K + 2)}, free, np.zeros(1), np.zeros(1), ())
    found = decide("x", model, cost, None)
    d = int(found.draft_tokens[0])
    verified = np.minimum(lengths, d)
    tokens = 1.0 + np.mean([(accept ** np.arange(1, v + 1)).sum() for v in verified])
    truth = tokens / target_s[1 + verified].mean()
    assert d == K
    assert tokens / target_s[1 + d] < 0.9 / target_s[1]
    assert truth > 1.3 / target_s[1]
    assert found.rate[0] == pytest.approx(truth, rel=0.02)
