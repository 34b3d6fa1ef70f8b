"""G held against the plain average: is what was predicted for a kind of round what it brings?

Knows the averages and the gain model of the present plan. Does not know time or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest

import numpy as np

from outrider_planner.core.ema import AcceptedAverage, Kind
from outrider_planner.core.gain import GainModel

MOST_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Check:
    """Accepted drafts per request and round, of rounds at about ``requests`` (a power of two).

    ``predicted`` is what is believed now, ``realised`` the moving average; None where no one
    drafter can be named.
    """

    requests: int
    draft_tokens: int
    verified_per_request: float
    rounds: int
    realised_tokens: float
    predicted_tokens: float | None


def checks(average: AcceptedAverage, gain: GainModel | None) -> tuple[Check, ...]:
    """The kinds of rounds that were seen most, most first. ``gain``: of the only drafter."""
    most = nlargest(MOST_SHOWN, average.kinds.items(), key=lambda item: (item[1].rounds, item[0]))
    return tuple(
        Check(
            requests=kind.scale,
            draft_tokens=kind.draft_tokens,
            verified_per_request=kind.verified_per_request,
            rounds=known.rounds,
            realised_tokens=known.accepted_per_request,
            predicted_tokens=None if gain is None else _predicted(kind, gain),
        )
        for kind, known in most
    )


def _predicted(kind: Kind, gain: GainModel) -> float | None:
    n, d = kind.scale, kind.draft_tokens
    if not 1 <= d <= gain.positions:
        return None
    verify = np.array([min(n * kind.verified_per_request, float(n * d))])
    return float(gain.accepted(n, gain.pool(n), verify)[d - 1, 0]) / n
