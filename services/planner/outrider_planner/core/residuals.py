"""Means over rounds that fade: what was measured lately, by bucket or ladder step.

Knows how quickly measurements age and how few of them are trusted. Does not know what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider_planner.core.types import BoolArray, FloatArray, IntArray

HALF_LIFE_ROUNDS = 64.0
# The same for an index while rounds run elsewhere. Shorter, and what was found dear would soon be
# believed cheap again, and be tried again and again.
UNUSED_HALF_LIFE_ROUNDS = 1024.0
# An index with less weight than this counts as never seen.
_LEAST_WEIGHT = 1e-3


@lru_cache(maxsize=1024)
def fading_weights(rounds: int, half_life_rounds: float) -> FloatArray:
    """Weights of a batch of rounds, oldest first; read only, the newest weighs 1."""
    weights: FloatArray = 2.0 ** (-np.arange(rounds - 1, -1, -1.0) / half_life_rounds)
    weights.flags.writeable = False
    return weights


@dataclass(slots=True, eq=False)
class FadingMeans:
    """One mean per index. All of them fade with every round, slowly where it ran elsewhere: some
    time after a noisy minute an index that is not used any more returns to what is common to all.
    """

    total: FloatArray
    weight: FloatArray

    @classmethod
    def zeros(cls, size: int) -> FadingMeans:
        """Nothing measured."""
        return cls(np.zeros(size), np.zeros(size))

    def observe(self, index: IntArray, values: NDArray[np.floating[Any]]) -> None:
        """Takes in one value per round, oldest first.

        Within the batch older rounds weigh less too, so a batch of any size weighs no more than
        the steady state.
        """
        size = self.total.size
        weights = fading_weights(values.size, HALF_LIFE_ROUNDS)
        own = np.bincount(index, minlength=size)
        others = values.size - own
        fade = np.exp2(-own / HALF_LIFE_ROUNDS - others / UNUSED_HALF_LIFE_ROUNDS)
        self.total = self.total * fade + np.bincount(index, weights * values, size)
        self.weight = self.weight * fade + np.bincount(index, weights, size)

    def seen(self) -> BoolArray:
        """Which indices were measured and not forgotten."""
        result: BoolArray = self.weight > _LEAST_WEIGHT
        return result

    def common(self, shrink_weight: float = 0.0) -> float:
        """The mean over all indices, shrunk to 0; 0 where nothing was measured."""
        weight = float(self.weight.sum()) + shrink_weight
        return float(self.total.sum()) / weight if weight > 0 else 0.0

    def means(self, prior: float, shrink_weight: float) -> FloatArray:
        """The mean of every index, shrunk to ``prior`` so that few rounds cannot move it far."""
        result: FloatArray = (self.total + shrink_weight * prior) / (self.weight + shrink_weight)
        return result
