"""A plain moving average of accepted drafts per request, beside the histograms.

Knows what rounds of one kind brought, and nothing of why: no scores, positions or classes. It is
the check on G, which is built from parts: a model that is right agrees with it. Not used to plan:
over equal evidence the histograms' position means have the same expectation and a longer memory.

Source: planner.md, "A plain EMA".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outrider_planner.core.types import IntArray, RoundColumns

OLD_WEIGHT = 0.9
# Kinds of rounds beyond these push out those that came first.
MOST_KINDS = 1024


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Rounds of one n-scale (the power of two at or above n), d, and V/n rounded to halves."""

    scale: int
    draft_tokens: int
    half_verified: int

    @property
    def verified_per_request(self) -> float:
        """V/n."""
        return self.half_verified / 2.0


@dataclass(slots=True)
class Average:
    """Accepted drafts per request and round; ``rounds`` seen in all."""

    accepted_per_request: float
    rounds: int = 0


@dataclass(slots=True, eq=False)
class AcceptedAverage:
    """One worker's averages by kind of round."""

    kinds: dict[Kind, Average] = field(default_factory=dict)

    def observe(self, rounds: RoundColumns) -> None:
        """Takes in rounds that verified drafts, oldest first."""
        verified = rounds.target_rows - rounds.requests
        chosen = np.flatnonzero(verified > 0)
        if chosen.size == 0:
            return
        n = rounds.requests[chosen]
        each = rounds.accepted_tokens[chosen] / n
        columns = (_scales(n), rounds.carried_draft_tokens[chosen], _halves(n, verified[chosen]))
        found: dict[tuple[int, int, int], list[float]] = {}
        # Some dozens of rounds of a few kinds: a dictionary is quicker than sorting rows.
        for *kind, value in zip(*(c.tolist() for c in (*columns, each)), strict=True):
            found.setdefault((kind[0], kind[1], kind[2]), []).append(value)
        for key in sorted(found):
            self._take(Kind(*key), found[key])

    def _take(self, kind: Kind, values: list[float]) -> None:
        known = self.kinds.setdefault(kind, Average(values[0]))
        for value in values:
            fresh = (1.0 - OLD_WEIGHT) * value
            known.accepted_per_request = OLD_WEIGHT * known.accepted_per_request + fresh
        known.rounds += len(values)
        if len(self.kinds) > MOST_KINDS:
            del self.kinds[next(iter(self.kinds))]

    def predict(self, requests: int, draft_tokens: int, verify_tokens: int) -> float | None:
        """Accepted drafts of a round, linear in V/n between neighbours of the same n-scale and d.

        0 at V = 0. None where V/n lies above all that was seen: nothing is extrapolated.
        """
        scale = int(_scales(np.array([requests]))[0])
        known = sorted(
            (kind.verified_per_request, average.accepted_per_request)
            for kind, average in self.kinds.items()
            if (kind.scale, kind.draft_tokens) == (scale, draft_tokens)
        )
        wanted = verify_tokens / requests
        if not known or wanted > known[-1][0]:
            return 0.0 if verify_tokens == 0 else None
        verified, accepted = zip((0.0, 0.0), *known, strict=True)
        return requests * float(np.interp(wanted, verified, accepted))


def _scales(requests: IntArray) -> IntArray:
    """The power of two at or above each n."""
    return (1 << np.ceil(np.log2(requests)).astype(np.int64)).astype(np.int64)


def _halves(requests: IntArray, verified: IntArray) -> IntArray:
    """V/n in halves, at least one half: no round that verified counts as one that did not."""
    return np.maximum(np.rint(2.0 * verified / requests).astype(np.int64), 1)
