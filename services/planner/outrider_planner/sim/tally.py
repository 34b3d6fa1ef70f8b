"""What a simulated worker counts between two reports, and the report it makes of it.

Knows the columns and cells of step reports. Does not know plans or truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from outrider_planner.core.types import AcceptanceCell, IntArray, RoundColumns, StepReports
from outrider_planner.sim.machine import RoundTimes

_COLUMNS = tuple(column.name for column in fields(RoundColumns))
# More than there are bins: (position, bin) in one number.
_BIN_SLOTS = 32
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """One round. Arrays (n,), ``bins`` (n, d); ``asked`` 0 for a request that just joined."""

    requests: int
    carried: int
    rows: int
    bucket: int
    context_tokens: int
    next_draft_tokens: int
    times: RoundTimes
    request_class: IntArray
    asked: IntArray
    lengths: IntArray
    verified: IntArray
    accepted: IntArray
    emitted: int
    bins: IntArray


@dataclass(slots=True, eq=False)
class Tally:
    """Rounds since the last report."""

    drafter: str
    classes: Sequence[str]
    scored: bool
    sequence: int = 0
    rounds: list[RoundOutcome] = field(default_factory=list)

    def take(self) -> StepReports:
        """The report; counting starts anew."""
        rounds, self.rounds = self.rounds, []
        self.sequence += 1
        columns = np.array([_row(item) for item in rounds], dtype=np.int64)
        columns = columns.reshape(len(rounds), len(_COLUMNS)).T
        drafted = [item for item in rounds if item.carried]
        cells = tuple(self._cells(drafted)) if drafted else ()
        return StepReports(
            self.sequence, RoundColumns(**dict(zip(_COLUMNS, columns, strict=True))), cells
        )

    def _cells(self, rounds: Sequence[RoundOutcome]) -> list[AcceptanceCell]:
        of_class, asked, lengths, verified, accepted = (
            np.concatenate([getattr(item, name) for item in rounds])
            for name in ("request_class", "asked", "lengths", "verified", "accepted")
        )
        width = max(item.carried for item in rounds)
        bins = np.zeros((of_class.size, width), dtype=np.int64)
        start = 0
        for item in rounds:
            bins[start : start + item.requests, : item.carried] = item.bins
            start += item.requests
        found = []
        for index, name in enumerate(self.classes):
            of = (of_class == index) & (asked > 0)
            if of.any():
                stages = (asked[of], lengths[of], verified[of], accepted[of])
                found.append(self._cell(name, stages, bins[of]))
        return found

    def _cell(self, name: str, stages: Sequence[IntArray], bins: IntArray) -> AcceptanceCell:
        position = np.arange(bins.shape[1])
        reached = [position < column[:, None] for column in stages]
        by_position = [mask.sum(axis=0) for mask in reached]
        key = position * _BIN_SLOTS + bins
        counts = [
            np.bincount(key[mask], minlength=_BIN_SLOTS * position.size) for mask in reached[1:]
        ]
        kept = np.flatnonzero(counts[0]) if self.scored else _NOTHING
        drafted, verified, accepted = (column[kept] for column in counts)
        return AcceptanceCell(
            drafter=self.drafter,
            request_class=name,
            context_band=0,
            asked=int(stages[0].size),
            asked_by_position=by_position[0],
            drafted=by_position[1],
            verified=by_position[2],
            accepted=by_position[3],
            bin_position=kept // _BIN_SLOTS,
            bin=kept % _BIN_SLOTS,
            bin_drafted=drafted,
            bin_verified=verified,
            bin_accepted=accepted,
        )


def _row(item: RoundOutcome) -> tuple[int, ...]:
    """In the order of the columns of a report."""
    times = item.times
    seconds = (times.target_s, times.feed_s, times.draft_s, times.host_s)
    return (
        *(item.requests, item.carried, int(item.lengths.sum()), item.rows, item.bucket),
        item.context_tokens,
        *(round(part * 1e6) for part in seconds),
        *(item.emitted, int(item.accepted.sum()), item.next_draft_tokens),
    )
