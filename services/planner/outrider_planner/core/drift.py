"""Has acceptance changed? A two-sided CUSUM on realised minus predicted accepted drafts.

Knows how sure a change must be and what it costs the older evidence in trust. Does not know where
predictions come from, nor what is done with trust.

The sums are log likelihood ratios of a shift by ``SHIFT_RATIO`` against none (Page 1954), for
counts that spread more than Poisson ones by a known ratio. They return to 0 while predictions
hold, so small lasting errors, below half of the shift, never add up to an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

import numpy as np

from outrider_planner.core.sums import Counts
from outrider_planner.core.types import FloatArray

SHIFT_RATIO = 0.3
# Where next to nothing is accepted: a rise by this many drafts per chain.
LEAST_RISE_TOKENS = 0.4
# exp(−threshold) bounds the chance that a run of the sum up from 0 is a false alarm.
THRESHOLD = 8.0
# Outcomes of one request resemble each other more than chains drawn anew.
_DISPERSION_RATIO = 1.5
_LEAST_PREDICTED = 0.01
# What older evidence is worth after an alarm, and how soon the deployment's is believed again.
TRUST_CUT = 1.0 / 64.0
TRUST_DOUBLING_ROUNDS = 64.0


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """What is believed of a class. ``survival`` (K, S) by position and score bin; ``plain`` (K,) by
    position alone; ``worth`` (K,): P(a request that is asked for so many drafts gets at least j,
    all accepted)."""

    survival: FloatArray
    plain: FloatArray
    worth: FloatArray


@dataclass(frozen=True, slots=True)
class Outcome:
    """Drafts of one class in one report: chains asked for, drafts accepted and predicted, and the
    prediction's variance.

    Drafts that were not verified count by their bin's survival. So a change shows where bins hold
    less than believed, and where drafts move to other bins or fail to come.
    """

    asked: float
    accepted: float
    predicted: float
    variance: float

    @classmethod
    def of(cls, found: Counts, believed: Belief, chains: float) -> Outcome:
        """From counts of as many positions and bins as the belief has.

        Of a chain asked for l drafts a are accepted with E[a] = Σ W_j and E[a²] = Σ (2j + 1) W_j.
        ``chains``: evidence behind the belief, whose own error counts as well.
        """
        expected = found.asked * believed.worth
        unseen = ((found.drafted - found.verified) * believed.survival).sum()
        ends = found.asked - np.append(found.asked[1:], 0.0)
        squares = ((2.0 * np.arange(expected.size) + 1.0) * expected).sum()
        spread = max(float(squares - (ends * np.cumsum(believed.worth) ** 2).sum()), 0.0)
        known = 1.0 + float(found.asked[0]) / max(chains, 1.0)
        return cls(
            asked=float(found.asked[0]),
            accepted=float(found.accepted.sum() + unseen),
            predicted=float(expected.sum()),
            variance=_DISPERSION_RATIO * spread * known,
        )


@dataclass(slots=True)
class DriftTest:
    """One worker's class. ``trust`` in (0, 1]: what the deployment's counts are worth for it."""

    rise: float = 0.0
    fall: float = 0.0
    trust: float = 1.0
    events: int = 0

    def observe(self, outcome: Outcome) -> bool:
        """Takes in a report's outcome; True where acceptance has changed."""
        if outcome.asked <= 0.0:
            return False
        expected = max(outcome.predicted, _LEAST_PREDICTED * outcome.asked)
        rise = max(SHIFT_RATIO * expected, LEAST_RISE_TOKENS * outcome.asked)
        ratio = max(outcome.variance / expected, 1.0)
        self.rise = max(0.0, self.rise + _evidence(outcome.accepted, expected, rise) / ratio)
        fall = -SHIFT_RATIO * expected
        self.fall = max(0.0, self.fall + _evidence(outcome.accepted, expected, fall) / ratio)
        if max(self.rise, self.fall) <= THRESHOLD:
            return False
        self.rise = self.fall = 0.0
        self.trust, self.events = TRUST_CUT, self.events + 1
        return True

    def recover(self, drafting_rounds: int) -> None:
        """Trust returns with drafting rounds that bring no further alarm."""
        self.trust = min(1.0, self.trust * 2.0 ** (drafting_rounds / TRUST_DOUBLING_ROUNDS))


def _evidence(accepted: float, expected: float, shift: float) -> float:
    """The log likelihood ratio of Poisson counts for a mean shifted by so much."""
    return accepted * log1p(shift / expected) - shift
