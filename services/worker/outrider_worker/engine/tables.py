"""From requests to the flat row tables of one forward. Pure lists; the runner makes tensors of it.

Row = (request, slot, position). A round feeds each request's anchor and the drafts picked for it;
a prefill feeds a chunk of known tokens. All rows of a round are judged, of a prefill only the last
row of a request whose chunk completes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.scheduler import PrefillChunk
from outrider_worker.engine.types import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row whose token is wanted: where it is and what its noise and filters are.

    index: of the token the row would emit, counted from the end of the original prompt.
    """

    row: int
    params: SamplingParams
    choice_index: int
    index: int


@dataclass(frozen=True, slots=True)
class ForwardTable:
    """Rows of one forward: equal-length columns, one page list for each sequence."""

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    sequence: list[int]
    pages: list[list[int]]
    samples: list[SampleRow]

    @property
    def rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class RoundTable:
    """A verify round: its rows, and the drafts under judgement by request."""

    forward: ForwardTable
    drafts: list[tuple[int, ...]]


class _Builder:
    def __init__(self, pages: PageAccount) -> None:
        self._pages = pages
        self.table = ForwardTable([], [], [], [], [], [])

    def add(self, request: Request, token_ids: Sequence[int]) -> None:
        """Rows for `token_ids` at the positions after the committed ones."""
        table, start = self.table, request.committed
        table.token_ids.extend(token_ids)
        table.positions.extend(range(start, start + len(token_ids)))
        table.slots.extend(
            self._pages.slot(request, start + place) for place in range(len(token_ids))
        )
        table.sequence.extend([len(table.pages)] * len(token_ids))
        table.pages.append(list(request.pages))

    def want(self, request: Request, row: int, ahead: int) -> None:
        """Ask for the token of a row; `ahead` of it are drafts that have to be right first."""
        self.table.samples.append(
            SampleRow(
                row,
                request.spec.sampling,
                request.spec.key.choice_index,
                request.emitted + ahead,
            )
        )


def prefill_table(chunks: Sequence[PrefillChunk], pages: PageAccount) -> ForwardTable:
    """Rows of a prefill forward; the requests' slots must be reserved."""
    builder = _Builder(pages)
    for chunk in chunks:
        start = chunk.request.committed
        builder.add(chunk.request, chunk.request.token_ids[start : start + chunk.tokens])
        if chunk.completes:
            builder.want(chunk.request, builder.table.rows - 1, ahead=0)
    return builder.table


def round_table(
    requests: Sequence[Request], picked: Sequence[int], pages: PageAccount
) -> RoundTable:
    """Rows of a verify round: the anchor and the first `picked` drafts of each request."""
    builder = _Builder(pages)
    drafts = []
    for request, count in zip(requests, picked, strict=True):
        first_row = builder.table.rows
        verified = request.draft.token_ids[:count]
        builder.add(request, (request.token_ids[-1], *verified))
        for ahead in range(count + 1):
            builder.want(request, first_row + ahead, ahead)
        drafts.append(verified)
    return RoundTable(builder.table, drafts)
