"""Has acceptance changed? A two-sided CUSUM on realised minus predicted accepted drafts.

Knows how sure a change must be and what it costs the older evidence in trust. Does not know where
predictions come from, nor what is done with trust.

The sums are log likelihood ratios of a shift by ``SHIFT_RATIO`` against none (Page 1954, with
normal increments). They return to 0 while predictions hold, so small lasting errors, below half
of the shift, never add up to an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider_planner.core.types import FloatArray

SHIFT_RATIO = 0.3
# exp(−threshold) bounds the chance that a run of the sum up from 0 is a false alarm.
THRESHOLD = 10.0
# Outcomes of one request resemble each other more than chains drawn anew.
_DISPERSION_RATIO = 1.5
# What older evidence is worth after an alarm, and how soon the deployment's is believed again.
TRUST_CUT = 1.0 / 64.0
TRUST_DOUBLING_ROUNDS = 64.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Drafts of one class in one report: accepted, predicted, and the prediction's variance."""

    accepted: float
    predicted: float
    variance: float

    @classmethod
    def of(
        cls, verified: FloatArray, accepted: FloatArray, survival: FloatArray, chains: float
    ) -> Outcome:
        """From (K, S) counts and the survival that was believed of them.

        A chain cut at l drafts accepts a of them with E[a] = Σ S_j and E[a²] = Σ (2j + 1) S_j.
        ``chains``: evidence behind the prediction, whose own error counts as well.
        """
        by_position = verified.sum(axis=1)
        hits = (verified * survival).sum(axis=1)
        mean = np.cumsum(hits / np.maximum(by_position, 1e-12))
        ends = by_position - np.append(by_position[1:], 0.0)
        squares = ((2.0 * np.arange(hits.size) + 1.0) * hits).sum()
        spread = max(float(squares - (ends * mean**2).sum()), 0.0)
        known = 1.0 + float(by_position[0]) / max(chains, 1.0)
        return cls(float(accepted.sum()), float(hits.sum()), _DISPERSION_RATIO * spread * known)


@dataclass(slots=True)
class DriftTest:
    """One worker's class. ``trust`` in (0, 1]: what the deployment's counts are worth for it."""

    rise: float = 0.0
    fall: float = 0.0
    trust: float = 1.0
    events: int = 0

    def observe(self, outcome: Outcome) -> bool:
        """Takes in a report's outcome; True where acceptance has changed."""
        if outcome.variance <= 0.0 or outcome.predicted <= 0.0:
            return False
        shift = SHIFT_RATIO * outcome.predicted
        error = outcome.accepted - outcome.predicted
        self.rise = max(0.0, self.rise + shift * (error - shift / 2.0) / outcome.variance)
        self.fall = max(0.0, self.fall - shift * (error + shift / 2.0) / outcome.variance)
        if max(self.rise, self.fall) <= THRESHOLD:
            return False
        self.rise = self.fall = 0.0
        self.trust, self.events = TRUST_CUT, self.events + 1
        return True

    def recover(self, drafting_rounds: int) -> None:
        """Trust returns with drafting rounds that bring no further alarm."""
        self.trust = min(1.0, self.trust * 2.0 ** (drafting_rounds / TRUST_DOUBLING_ROUNDS))
