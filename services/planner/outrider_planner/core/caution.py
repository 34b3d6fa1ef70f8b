"""How much more than off a plan must promise before it is believed.

Knows how uncertain a predicted gain is by the evidence behind it. Does not know costs or plans.

A chain's accepted drafts have mean g and, falling off geometrically, variance g(1 + g). Their mean
over N chains is uncertain by σ = √(g(1 + g)/N), the rate relative to off by σ/(1 + g). Asking for
half of that trades a little gain that is missed for the losses of plans chosen by luck.
"""

from __future__ import annotations

from math import sqrt

DEVIATIONS = 0.5
# However little is known: a promise this large is tried, since drafting is what teaches.
MOST_CAUTION = 0.01


def caution(requests: int, accepted: float, chains: float) -> float:
    """The gain over off to ask for, relative: 0 for certain or empty predictions.

    ``accepted``: G of a round of n ``requests``; ``chains``: request-rounds behind it.
    """
    each = accepted / requests
    if each <= 0.0:
        return 0.0
    return min(DEVIATIONS * sqrt(each / ((1.0 + each) * max(chains, 1.0))), MOST_CAUTION)
