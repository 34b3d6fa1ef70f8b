"""Score histograms: from counts by (class, position, bin) to calibrated survival.

Knows how little evidence is completed (cold-cell order, planner.md "Statistics") and what every
estimate must satisfy: within [0, 1], non-increasing along a chain, non-decreasing with the score
bin. Does not know costs, batches or plans.

Axes: C classes, K positions, S score bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider_planner.core.sums import Counts
from outrider_planner.core.types import FloatArray

PRIOR_CONDITIONAL = 0.6
PRIOR_WEIGHT = 2.0
NEIGHBOUR_WEIGHT = 2.0
FLEET_WEIGHT = 4.0
SLOW_WEIGHT = 12.0
_CONDITIONAL_BOUNDS = (0.01, 0.99)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Trials and successes of one source of evidence, both (C, K, S)."""

    trials: FloatArray
    successes: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """What is believed of a drafter, per class.

    ``survival``: (C, K, S), P(accepted through this position | score bin).
    ``length``: (C, K), P(a request has a draft at this position | asked for one that long).
    ``bin_share``: (C, K, S), distribution of the drafts of a position over bins.
    ``class_share``: (C,), of the request-rounds. ``verified``: evidence, decayed count.
    """

    survival: FloatArray
    length: FloatArray
    bin_share: FloatArray
    class_share: FloatArray
    verified: float


def estimate(
    fast: Sequence[Counts], slow: Sequence[Counts], fleet: Counts, sparse: bool
) -> Estimates:
    """Estimates for C classes from a worker's, the deployment's and the fleet's counts.

    ``fast`` and ``slow`` hold C entries of one shape (K positions, S bins), ``fleet`` one entry
    pooled over classes. Missing evidence is all zeros: unknown, never a zero estimate.
    """
    sources = (fast, slow, [fleet] * len(fast))
    verified, accepted, drafted = (
        [np.stack([counts.grid[kind] for counts in source]) for source in sources]
        for kind in (1, 2, 0)
    )
    asked = [np.stack([counts.asked for counts in source])[:, :, None] for source in sources]
    levels = [_with_neighbours(Level(v, a)) for v, a in zip(verified, accepted, strict=True)]
    survival = isotonic(
        chain_survival(levels), sum(level.trials for level in levels) + PRIOR_WEIGHT
    )
    lengths = [Level(a, d.sum(-1, keepdims=True)) for a, d in zip(asked, drafted, strict=True)]
    length = chain_survival(lengths)[:, :, 0] if sparse else np.ones(asked[0].shape[:2])
    return Estimates(
        survival=np.minimum.accumulate(np.clip(survival, 0.0, 1.0), axis=1),
        length=length,
        bin_share=_bin_share(drafted),
        class_share=_class_share(asked[0][:, 0, 0], asked[1][:, 0, 0]),
        verified=float(verified[0].sum()),
    )


def chain_survival(levels: Sequence[Level]) -> FloatArray:
    """P(success through position j), (C, K, S), for levels ordered from nearest to farthest.

    Each level is shrunk to the next one with a bounded weight; under the last lies the geometric
    continuation of shallower positions, and under that a weak prior.
    """
    classes, positions, bins = levels[0].trials.shape
    survival = np.empty((classes, positions, bins))
    previous = np.ones((classes, bins))
    conditional = np.full((classes, 1), PRIOR_CONDITIONAL)
    for j in range(positions):
        at_j = [Level(level.trials[:, j], level.successes[:, j]) for level in levels]
        survival[:, j] = np.minimum(_shrunk(at_j, previous * conditional), previous)
        conditional = _continued(at_j, previous, conditional)
        previous = survival[:, j]
    return survival


def _shrunk(at_j: Sequence[Level], prior: FloatArray) -> FloatArray:
    value, weight = prior, np.full_like(prior, PRIOR_WEIGHT)
    caps = (SLOW_WEIGHT, FLEET_WEIGHT, PRIOR_WEIGHT)[-len(at_j) :]
    for level, cap in zip(reversed(at_j), reversed(caps), strict=True):
        weight = np.minimum(weight, cap)
        value = (level.successes + weight * value) / (level.trials + weight)
        weight = level.trials + weight
    return value


def _continued(at_j: Sequence[Level], previous: FloatArray, conditional: FloatArray) -> FloatArray:
    """Conditional success ratio at the deepest known position so far, (C, 1).

    Trials at j that survived to j − 1 are trials × survival(j − 1): no trials, no news.
    """
    nearest = next((level for level in at_j if level.trials.any()), at_j[-1])
    reached = (nearest.trials * previous).sum(-1, keepdims=True)
    gained = nearest.successes.sum(-1, keepdims=True)
    ratio = (gained + PRIOR_WEIGHT * conditional) / (reached + PRIOR_WEIGHT)
    return np.clip(ratio, *_CONDITIONAL_BOUNDS)


def _with_neighbours(level: Level) -> Level:
    """Adds the adjacent bins' outcomes with a small bounded weight."""
    trials, successes = np.zeros_like(level.trials), np.zeros_like(level.successes)
    for into, source in ((trials, level.trials), (successes, level.successes)):
        into[..., 1:] += source[..., :-1]
        into[..., :-1] += source[..., 1:]
    scale = np.minimum(1.0, NEIGHBOUR_WEIGHT / np.maximum(trials, NEIGHBOUR_WEIGHT))
    return Level(level.trials + scale * trials, level.successes + scale * successes)


def isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least-squares fit that does not fall along the last axis.

    The minimax form of pool-adjacent-violators: fit_b = max over k ≤ b of the min over l ≥ b of
    mean(k…l); O(S²) and free of loops. Weights must be positive. Weighted sums are preserved.
    """
    size = values.shape[-1]
    if size == 1:
        return values
    zero = np.zeros((*values.shape[:-1], 1))
    weight_sum = np.concatenate([zero, np.cumsum(weights, -1)], -1)
    value_sum = np.concatenate([zero, np.cumsum(values * weights, -1)], -1)
    weight_in = weight_sum[..., None, 1:] - weight_sum[..., :-1, None]
    value_in = value_sum[..., None, 1:] - value_sum[..., :-1, None]
    upper = np.triu(np.ones((size, size), dtype=bool))
    mean = np.where(upper, value_in / np.where(upper, weight_in, 1.0), np.inf)
    least = np.minimum.accumulate(mean[..., ::-1], axis=-1)[..., ::-1]
    fit: FloatArray = np.where(upper, least, -np.inf).max(axis=-2)
    return fit


def _bin_share(drafted: Sequence[FloatArray]) -> FloatArray:
    """Distribution over bins; an unseen position repeats the one before it."""
    nearest, slow, fleet = drafted
    share = np.empty_like(nearest)
    classes, positions, bins = nearest.shape
    previous = np.full((classes, bins), 1.0 / bins)
    farther = _capped(slow, SLOW_WEIGHT) + _capped(fleet, FLEET_WEIGHT)
    for j in range(positions):
        mass = nearest[:, j] + farther[:, j] + PRIOR_WEIGHT * previous
        previous = mass / mass.sum(-1, keepdims=True)
        share[:, j] = previous
    return share


def _capped(drafted: FloatArray, cap: float) -> FloatArray:
    mass = drafted.sum(-1, keepdims=True)
    return drafted * (cap / np.maximum(mass, cap))


def _class_share(fast_asked: FloatArray, slow_asked: FloatArray) -> FloatArray:
    slow_total = max(float(slow_asked.sum()), 1.0)
    mass = fast_asked + slow_asked * min(1.0, SLOW_WEIGHT / slow_total)
    whole = float(mass.sum())
    return mass / whole if whole > 0 else np.full(mass.shape, 1.0 / mass.size)
