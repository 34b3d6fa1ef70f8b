"""Near and far evidence blended: a worker's own, the deployment's, the fleet's.

Knows that every source is shrunk to the next one with a bounded weight, and how far a source is
trusted. Does not know what is estimated, nor when trust is lost.

Axes: C classes, K positions, S score bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider_planner.core.types import FloatArray

PRIOR_CONDITIONAL = 0.6
PRIOR_WEIGHT = 2.0
# The most trials that the deployment and the fleet stand for, however many they have.
SLOW_WEIGHT, FLEET_WEIGHT = 12.0, 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Trials and successes of one source of evidence, both (C, K, S)."""

    trials: FloatArray
    successes: FloatArray


def far_weights(trust: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Caps of the deployment's and the fleet's weight, each (C, 1, 1), for a trust of (C,)."""
    each = trust[:, None, None]
    return SLOW_WEIGHT * each, FLEET_WEIGHT * each


def shrunk(levels: Sequence[Level], trust: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The blended estimate as a linear function of the prior: (offset, slope), each (C, K, S).

    ``levels``: the worker's, the deployment's, the fleet's. A source with few trials hands what
    it lacks on to the next, and the last one to the prior.
    """
    offset, slope = np.zeros_like(levels[0].trials), np.ones_like(levels[0].trials)
    weight = np.full_like(slope, PRIOR_WEIGHT)
    caps = (*far_weights(trust), np.full((1, 1, 1), PRIOR_WEIGHT))
    for level, cap in zip(reversed(levels), reversed(caps), strict=True):
        weight = np.minimum(weight, cap)
        whole = level.trials + weight
        offset = (level.successes + weight * offset) / whole
        slope = weight * slope / whole
        weight = whole
    return offset, slope


def pooled(levels: Sequence[Level], trust: FloatArray) -> Level:
    """All sources added up, the farther ones within their weight per position."""
    trials, successes = levels[0].trials, levels[0].successes
    for level, cap in zip(levels[1:], far_weights(trust), strict=True):
        scale = cap / np.maximum(level.trials.sum(-1, keepdims=True), cap)
        trials, successes = trials + scale * level.trials, successes + scale * level.successes
    return Level(trials, successes)


def blended_mass(
    nearest: FloatArray, slow: FloatArray, fleet: FloatArray, trust: FloatArray
) -> FloatArray:
    """Counts (C, K, S) of all sources added up, the farther ones within their weight."""
    slow_cap, fleet_cap = far_weights(trust)
    return nearest + _capped(slow, slow_cap) + _capped(fleet, fleet_cap)


def _capped(counts: FloatArray, cap: FloatArray) -> FloatArray:
    result: FloatArray = counts * (cap / np.maximum(counts.sum(-1, keepdims=True), cap))
    return result
