"""Round records on their way to the planner: a bounded ring, and the sums a report carries.

The engine appends and never waits; when the reader is slow the oldest records are dropped and
counted.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider_worker.engine.records import DraftOutcome, RoundRecord
from outrider_worker.engine.samples import fair
from outrider_worker.engine.types import MAX_SCORE_BINS

# Upper edges of the context bands, in tokens; what lies above is the last band.
CONTEXT_BAND_EDGES_TOKENS = (1024, 4096, 16384)


def context_band(tokens: int) -> int:
    """The band of a context length: acceptance often falls with it."""
    return sum(tokens >= edge for edge in CONTEXT_BAND_EDGES_TOKENS)


class RecordRing:
    """Records not yet reported. One thread appends, another takes."""

    def __init__(self, capacity_rounds: int = 4096) -> None:
        self._records: deque[RoundRecord] = deque(maxlen=capacity_rounds)
        self.dropped_rounds = 0

    def append(self, record: RoundRecord) -> None:
        if len(self._records) == self._records.maxlen:
            self.dropped_rounds += 1
        self._records.append(record)

    def take(self, limit: int = 512) -> list[RoundRecord]:
        """The oldest records, at most `limit`; they are gone from the ring."""
        taken: list[RoundRecord] = []
        while self._records and len(taken) < limit:
            taken.append(self._records.popleft())
        return taken


@dataclass(slots=True)
class AcceptanceCell:
    """Sums over one (drafter, class, context band); lists by position, dict by (position, bin).

    Values of `by_bin` are [drafted, verified, accepted].
    """

    asked: int = 0
    asked_by_position: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    by_bin: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    score_map_version: int = 0

    def add(self, outcome: DraftOutcome) -> None:
        self.asked += 1
        self.score_map_version = max(self.score_map_version, outcome.score_map_version)
        _count_prefix(self.asked_by_position, outcome.asked_tokens)
        _count_prefix(self.drafted, len(outcome.bins))
        _count_prefix(self.verified, outcome.verified)
        _count_prefix(self.accepted, outcome.accepted)
        for position, score_bin in enumerate(outcome.bins):
            counts = self.by_bin.setdefault(
                (position, min(score_bin, MAX_SCORE_BINS - 1)), [0, 0, 0]
            )
            counts[0] += 1
            counts[1] += position < outcome.verified
            counts[2] += position < outcome.accepted


CellKey = tuple[str, str, int]
"""(drafter, class, context band)"""


def tally(records: Iterable[RoundRecord]) -> dict[CellKey, AcceptanceCell]:
    """Sum the outcomes of many rounds by cell, each request and key within its share."""
    outcomes = (outcome for record in records for outcome in record.outcomes)
    cells: dict[CellKey, AcceptanceCell] = {}
    for outcome in fair(outcomes, _cell_of):
        cells.setdefault(_cell_of(outcome), AcceptanceCell()).add(outcome)
    return cells


def _cell_of(outcome: DraftOutcome) -> CellKey:
    return (outcome.drafter, outcome.request_class, context_band(outcome.context_tokens))


def _count_prefix(counts: list[int], length: int) -> None:
    """Add one to the first `length` positions."""
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1
