"""Score histograms: from counts by (class, position, bin) to calibrated survival.

Knows how little evidence is completed (cold-cell order, planner.md "Statistics") and what every
estimate must satisfy: within [0, 1], non-increasing along a chain, non-decreasing with the score
bin. Does not know costs, batches or plans.

Axes: C classes, K positions, S score bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider_planner.core.blend import (
    PRIOR_WEIGHT,
    SLOW_WEIGHT,
    Level,
    blended_mass,
    pooled,
)
from outrider_planner.core.chains import chain_survival
from outrider_planner.core.isotonic import isotonic
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import FloatArray

NEIGHBOUR_WEIGHT = 2.0
# Bins never drafted from keep next to no mass: a phantom bin would carry the prior's survival.
_UNIFORM_WEIGHT = 0.05


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

    @property
    def mean_survival(self) -> FloatArray:
        """(C, K), of the drafts there are at each position. It may rise where drafts differ in
        length: those that are long are the good ones, and only they are still there."""
        result: FloatArray = (self.survival * self.bin_share).sum(-1)
        return result


def estimate(
    fast: Sequence[Counts],
    slow: Sequence[Counts],
    fleet: Counts,
    sparse: bool,
    trust: FloatArray | None = None,
) -> Estimates:
    """Estimates for C classes from a worker's, the deployment's and the fleet's counts.

    ``fast`` and ``slow`` hold C entries of one shape (K positions, S bins), ``fleet`` one entry
    pooled over classes. Missing evidence is all zeros: unknown, never a zero estimate. ``trust``
    (C,) in (0, 1]: how far others speak for this worker's class; 1 where nothing says otherwise.
    """
    trust = np.ones(len(fast)) if trust is None else trust
    sources = (fast, slow, [fleet] * len(fast))
    verified, accepted, drafted = (
        [np.stack([counts.grid[kind] for counts in source]) for source in sources]
        for kind in (1, 2, 0)
    )
    asked = [np.stack([counts.asked for counts in source])[:, :, None] for source in sources]
    levels = [_with_neighbours(Level(v, a)) for v, a in zip(verified, accepted, strict=True)]
    evidence = pooled(levels, trust).trials
    near, deployment, everywhere = drafted
    bin_share = _bin_share(blended_mass(near, deployment, everywhere, trust))
    survival = isotonic(chain_survival(levels, trust, bin_share), evidence + PRIOR_WEIGHT)
    lengths = [Level(a, d.sum(-1, keepdims=True)) for a, d in zip(asked, drafted, strict=True)]
    length = chain_survival(lengths, trust)[:, :, 0] if sparse else np.ones(asked[0].shape[:2])
    return Estimates(
        survival=np.minimum.accumulate(np.clip(survival, 0.0, 1.0), axis=1),
        length=length,
        bin_share=bin_share,
        class_share=_class_share(asked[0][:, 0, 0], asked[1][:, 0, 0]),
        verified=float(verified[0].sum()),
    )


def _with_neighbours(level: Level) -> Level:
    """Adds the adjacent bins' outcomes with a small bounded weight."""
    trials, successes = np.zeros_like(level.trials), np.zeros_like(level.successes)
    for into, source in ((trials, level.trials), (successes, level.successes)):
        into[..., 1:] += source[..., :-1]
        into[..., :-1] += source[..., 1:]
    scale = np.minimum(1.0, NEIGHBOUR_WEIGHT / np.maximum(trials, NEIGHBOUR_WEIGHT))
    return Level(level.trials + scale * trials, level.successes + scale * successes)


def flattened(estimates: Estimates) -> Estimates:
    """The same without scores: every bin of a position survives as the mean of its drafts.

    For drafters whose scores tell nothing: a pick by noise is no pick, and the curve that orders
    noise promises gains that are not there.
    """
    flat = np.minimum.accumulate(estimates.mean_survival, axis=1)[..., None]
    return replace(estimates, survival=np.broadcast_to(flat, estimates.survival.shape))


def _bin_share(known: FloatArray) -> FloatArray:
    """Distribution over bins; an unseen position repeats the one before it."""
    share = np.empty_like(known)
    classes, positions, bins = known.shape
    previous = np.full((classes, bins), _UNIFORM_WEIGHT / bins)
    for j in range(positions):
        mass = known[:, j] + previous
        share[:, j] = mass / mass.sum(-1, keepdims=True)
        previous = PRIOR_WEIGHT * share[:, j]
    return share


def _class_share(fast_asked: FloatArray, slow_asked: FloatArray) -> FloatArray:
    slow_total = max(float(slow_asked.sum()), 1.0)
    mass = fast_asked + slow_asked * min(1.0, SLOW_WEIGHT / slow_total)
    whole = float(mass.sum())
    return mass / whole if whole > 0 else np.full(mass.shape, 1.0 / mass.size)
