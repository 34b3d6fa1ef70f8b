"""Do a drafter's scores tell anything, and how far are they off? Judged by outcomes to come.

Knows predictions that were made before their outcomes, per drafter. Does not know how they were
made, nor what follows for plans.

Scores are useful if the survival of a draft's bin predicts its acceptance better than what would be
believed of its position without them (Brier score, over the same verified drafts). Both were
believed before the drafts were made: the mean of the drafts at hand knows their scores, and in a
short report is nearly as good as they are. The calibration error is the
expected one (ECE): the mean over drafts of |predicted − accepted| by score bin.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outrider_planner.core.types import MAX_BINS, DrafterCost, DrafterTraits, FloatArray

HALF_LIFE_ROUNDS = 512.0
LEAST_DRAFTS = 256.0
# In standard errors: below the first scores are given up, above the second taken up again.
_USELESS_BELOW, _USEFUL_ABOVE = 1.0, 3.0
# Drafts of one chain stand or fall together.
_CHAIN_DISPERSION = 2.0


@dataclass(slots=True, eq=False)
class Calibration:
    """Fading sums over the verified drafts of one drafter; ``useful`` until shown otherwise."""

    useful: bool = True
    _verified: FloatArray = field(default_factory=lambda: np.zeros(MAX_BINS))
    _accepted: FloatArray = field(default_factory=lambda: np.zeros(MAX_BINS))
    _predicted: FloatArray = field(default_factory=lambda: np.zeros(MAX_BINS))
    _gained: float = 0.0
    _gained_squared: float = 0.0

    def fade(self, drafting_rounds: int) -> None:
        """Ages by rounds that drafted."""
        keep = 2.0 ** (-drafting_rounds / HALF_LIFE_ROUNDS)
        self._verified *= keep
        self._accepted *= keep
        self._predicted *= keep
        self._gained *= keep
        self._gained_squared *= keep

    def observe(
        self, verified: FloatArray, accepted: FloatArray, survival: FloatArray, plain: FloatArray
    ) -> None:
        """Takes in outcomes (K, S), and what was believed before them: the survival by bin (K, S),
        and that of any draft at the position (K,)."""
        bins = survival.shape[1]
        self._verified[:bins] += verified.sum(axis=0)
        self._accepted[:bins] += accepted.sum(axis=0)
        self._predicted[:bins] += (verified * survival).sum(axis=0)
        mean = plain[:, None]
        right = (1.0 - mean) ** 2 - (1.0 - survival) ** 2
        wrong = mean**2 - survival**2
        missed = verified - accepted
        self._gained += float((accepted * right + missed * wrong).sum())
        self._gained_squared += float((accepted * right**2 + missed * wrong**2).sum())
        self._judge()

    def _judge(self) -> None:
        if self._verified.sum() < LEAST_DRAFTS:
            return
        error = np.sqrt(_CHAIN_DISPERSION * self._gained_squared)
        deviations = self._gained / error if error > 0 else 0.0
        self.useful = bool(deviations > (_USELESS_BELOW if self.useful else _USEFUL_ABOVE))

    def error_after(self) -> float | None:
        """ECE of the calibrated survivals; None before anything was verified."""
        return self._error(self._predicted)

    def error_before(self, traits: DrafterTraits) -> float | None:
        """ECE of the raw scores; None where scores are no probabilities (lengths of matches)."""
        if traits.cost is DrafterCost.HOST or traits.score_bins < MAX_BINS:
            return None
        return self._error(self._verified * raw_survival())

    def _error(self, predicted: FloatArray) -> float | None:
        drafts = float(self._verified.sum())
        if drafts < 1.0:
            return None
        return float(np.abs(predicted - self._accepted).sum()) / drafts


def raw_survival() -> FloatArray:
    """The running score that each of the 16 bins stands for: two bins for each halving."""
    result: FloatArray = np.exp2((np.arange(MAX_BINS, dtype=np.float64) + 0.5 - MAX_BINS) / 2.0)
    return result
