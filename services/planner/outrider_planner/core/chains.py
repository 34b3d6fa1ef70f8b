"""Survival along a chain of drafts: position by position, from blended evidence.

Knows how positions and bins that were never verified go on from those that were. Does not know
calibration by order of bins, classes' shares or lengths.

Axes: C classes, K positions, S score bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider_planner.core.blend import PRIOR_CONDITIONAL, PRIOR_WEIGHT, Level, pooled, shrunk
from outrider_planner.core.types import FloatArray

_LEAST_CONDITIONAL, _MOST_CONDITIONAL = 0.01, 0.99
# Bins are two for each halving of a score: survival proportional to the score rises like this.
_MOST_BIN_SLOPE = 0.5 * np.log(2.0)
_SLOPE_PRIOR_WEIGHT = 16.0


def chain_survival(
    levels: Sequence[Level], trust: FloatArray, bin_share: FloatArray | None = None
) -> FloatArray:
    """P(success through position j), (C, K, S), from fast, slow and fleet evidence.

    Each level is shrunk to the next one with a bounded weight; under the last lies the geometric
    continuation of shallower positions, and under that a weak prior. The continuation goes on
    within each bin, by the ratio that the deepest known positions show. ``bin_share``: where the
    drafts of each position lie; None for a single bin.
    """
    classes, positions, bins = levels[0].trials.shape
    offset, slope = shrunk(levels, trust)
    all_levels = pooled(levels, trust)
    trials, gained = all_levels.trials, all_levels.successes.sum(-1, keepdims=True)
    survival = np.empty((classes, positions, bins))
    previous = np.ones((classes, bins))
    conditional = np.full((classes, 1), PRIOR_CONDITIONAL)
    for j in range(positions):
        prior = previous * conditional if j else _first_prior(all_levels)
        survival[:, j] = np.minimum(offset[:, j] + slope[:, j] * prior, previous)
        # Trials at j that survived to j − 1 are trials × survival(j − 1): no trials, no news.
        reached = (trials[:, j] * previous).sum(-1, keepdims=True)
        ratio = (gained[:, j] + PRIOR_WEIGHT * conditional) / (reached + PRIOR_WEIGHT)
        conditional = np.minimum(np.maximum(ratio, _LEAST_CONDITIONAL), _MOST_CONDITIONAL)
        previous = survival[:, j]
        if j == 0 and bin_share is not None and positions > 1:
            conditional = conditional ** (1.0 - _told(previous, bin_share, conditional))
    return survival


def _first_prior(evidence: Level) -> FloatArray:
    """What a bin of the first position is worth by what the *other* bins show, (C, S).

    Their mean, moved along the line through log survival by bin that all positions show: a bin
    below all that were verified is not worth as much as the last of them.
    """
    trials, successes = evidence.trials[:, 0], evidence.successes[:, 0]
    others = trials.sum(-1, keepdims=True) - trials
    gained = successes.sum(-1, keepdims=True) - successes
    mean = (gained + PRIOR_WEIGHT * PRIOR_CONDITIONAL) / (others + PRIOR_WEIGHT)
    distance = _distance(successes)
    prior: FloatArray = np.clip(
        mean * np.exp(_bin_slope(evidence) * distance), _LEAST_CONDITIONAL, _MOST_CONDITIONAL
    )
    return prior


def _bin_slope(evidence: Level) -> FloatArray:
    """How log survival rises by bin within a position, shrunk to 0, (C, 1)."""
    trials, weight = evidence.trials, evidence.successes
    log = np.log((weight + 0.5 * PRIOR_CONDITIONAL) / (trials + 0.5))
    distance = _distance(weight)
    rise = (weight * distance * log).sum((1, 2)) / (
        (weight * distance**2).sum((1, 2)) + _SLOPE_PRIOR_WEIGHT
    )
    slope: FloatArray = np.clip(rise, 0.0, _MOST_BIN_SLOPE)[:, None]
    return slope


def _distance(weight: FloatArray) -> FloatArray:
    """Bins from the weighted middle of their position, of the weights' shape (…, S)."""
    bins = np.arange(weight.shape[-1], dtype=np.float64)
    mass = np.maximum(weight.sum(-1, keepdims=True), 1e-9)
    result: FloatArray = bins - (weight * bins).sum(-1, keepdims=True) / mass
    return result


def _told(first: FloatArray, bin_share: FloatArray, conditional: FloatArray) -> FloatArray:
    """The part of the fall from the first position to the second that scores tell, (C, 1).

    A running score falls along the chain, and so the drafts move to lower bins: what a bin is
    worth need not fall as well. The length of a match stays the same along the chain: all of the
    fall is within the bins.
    """
    before = (bin_share[:, 0] * first).sum(-1, keepdims=True)
    after = (bin_share[:, 1] * first).sum(-1, keepdims=True)
    told: FloatArray = np.clip((1.0 - after / before) / (1.0 - conditional), 0.0, 1.0)
    return told
