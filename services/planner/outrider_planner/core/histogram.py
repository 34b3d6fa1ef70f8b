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

from outrider_planner.core.isotonic import isotonic
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import FloatArray

PRIOR_CONDITIONAL = 0.6
PRIOR_WEIGHT = 2.0
NEIGHBOUR_WEIGHT = 2.0
FLEET_WEIGHT = 4.0
SLOW_WEIGHT = 12.0
# Bins never drafted from keep next to no mass: a phantom bin would carry the prior's survival.
_UNIFORM_WEIGHT = 0.05
_LEAST_CONDITIONAL, _MOST_CONDITIONAL = 0.01, 0.99


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
    evidence = levels[0].trials + levels[1].trials + levels[2].trials
    survival = isotonic(chain_survival(levels), evidence + PRIOR_WEIGHT)
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
    """P(success through position j), (C, K, S), from fast, slow and fleet evidence.

    Each level is shrunk to the next one with a bounded weight; under the last lies the geometric
    continuation of shallower positions, and under that a weak prior.
    """
    classes, positions, bins = levels[0].trials.shape
    offset, slope = _shrunk(levels)
    trials, gained = _continuation_evidence(levels)
    survival = np.empty((classes, positions, bins))
    previous = np.ones((classes, bins))
    conditional = np.full((classes, 1), PRIOR_CONDITIONAL)
    for j in range(positions):
        survival[:, j] = np.minimum(offset[:, j] + slope[:, j] * (previous * conditional), previous)
        # Trials at j that survived to j − 1 are trials × survival(j − 1): no trials, no news.
        reached = (trials[:, j] * previous).sum(-1, keepdims=True)
        ratio = (gained[:, j] + PRIOR_WEIGHT * conditional) / (reached + PRIOR_WEIGHT)
        conditional = np.minimum(np.maximum(ratio, _LEAST_CONDITIONAL), _MOST_CONDITIONAL)
        previous = survival[:, j]
    return survival


def _shrunk(levels: Sequence[Level]) -> tuple[FloatArray, FloatArray]:
    """The shrunk estimate as a linear function of the prior: (offset, slope), each (C, K, S)."""
    offset, slope = np.zeros_like(levels[0].trials), np.ones_like(levels[0].trials)
    weight = np.full_like(slope, PRIOR_WEIGHT)
    caps = (SLOW_WEIGHT, FLEET_WEIGHT, PRIOR_WEIGHT)
    for level, cap in zip(reversed(levels), reversed(caps), strict=True):
        weight = np.minimum(weight, cap)
        whole = level.trials + weight
        offset = (level.successes + weight * offset) / whole
        slope = weight * slope / whole
        weight = whole
    return offset, slope


def _continuation_evidence(levels: Sequence[Level]) -> tuple[FloatArray, FloatArray]:
    """Trials by bin (C, K, S) and successes over all bins (C, K, 1), farther levels bounded."""
    trials, gained = levels[0].trials, levels[0].successes.sum(-1, keepdims=True)
    for level, cap in zip(levels[1:], (SLOW_WEIGHT, FLEET_WEIGHT), strict=True):
        scale = cap / np.maximum(level.trials.sum(-1, keepdims=True), cap)
        trials = trials + scale * level.trials
        gained = gained + scale * level.successes.sum(-1, keepdims=True)
    return trials, gained


def _with_neighbours(level: Level) -> Level:
    """Adds the adjacent bins' outcomes with a small bounded weight."""
    trials, successes = np.zeros_like(level.trials), np.zeros_like(level.successes)
    for into, source in ((trials, level.trials), (successes, level.successes)):
        into[..., 1:] += source[..., :-1]
        into[..., :-1] += source[..., 1:]
    scale = np.minimum(1.0, NEIGHBOUR_WEIGHT / np.maximum(trials, NEIGHBOUR_WEIGHT))
    return Level(level.trials + scale * trials, level.successes + scale * successes)


def _bin_share(drafted: Sequence[FloatArray]) -> FloatArray:
    """Distribution over bins; an unseen position repeats the one before it."""
    nearest, slow, fleet = drafted
    share = np.empty_like(nearest)
    classes, positions, bins = nearest.shape
    previous = np.full((classes, bins), _UNIFORM_WEIGHT / bins)
    known = nearest + _capped(slow, SLOW_WEIGHT) + _capped(fleet, FLEET_WEIGHT)
    for j in range(positions):
        mass = known[:, j] + previous
        share[:, j] = mass / mass.sum(-1, keepdims=True)
        previous = PRIOR_WEIGHT * share[:, j]
    return share


def _capped(drafted: FloatArray, cap: float) -> FloatArray:
    mass = drafted.sum(-1, keepdims=True)
    capped: FloatArray = drafted * (cap / np.maximum(mass, cap))
    return capped


def _class_share(fast_asked: FloatArray, slow_asked: FloatArray) -> FloatArray:
    slow_total = max(float(slow_asked.sum()), 1.0)
    mass = fast_asked + slow_asked * min(1.0, SLOW_WEIGHT / slow_total)
    whole = float(mass.sum())
    return mass / whole if whole > 0 else np.full(mass.shape, 1.0 / mass.size)
