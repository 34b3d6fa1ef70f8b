"""How much more than off a plan must promise before it is believed.

Knows how uncertain a predicted gain is by the evidence behind it. Does not know costs or plans.

A chain's accepted drafts have mean g and, falling off geometrically, variance g(1 + g). Their mean
over N chains is uncertain by σ = √(g(1 + g)/N), the rate relative to off by σ/(1 + g). Asking for
half of that trades a little gain that is missed for the losses of plans chosen by luck.
"""

from __future__ import annotations

import numpy as np

from outrider_planner.core.types import FloatArray, IntArray

DEVIATIONS = 0.5
# However little is known: a promise this large is tried, since drafting is what teaches.
MOST_CAUTION = 0.01


def caution(requests: IntArray, accepted: FloatArray, chains: float) -> FloatArray:
    """The gain over off to ask for, relative, (S,): 0 for certain or empty predictions.

    ``accepted`` (S,): G of rounds of n ``requests`` (S,); ``chains``: request-rounds behind it.
    """
    each = np.maximum(accepted, 0.0) / requests
    doubt: FloatArray = DEVIATIONS * np.sqrt(each / ((1.0 + each) * max(chains, 1.0)))
    return np.minimum(doubt, MOST_CAUTION)
