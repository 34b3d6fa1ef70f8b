"""What the device knows of each running request: its seat.

Everything that one round needs of the round before stays here, so that the host can launch a round
whose predecessor it has not read: tokens, lengths, drafts, pages. Line N, behind the last seat, is
the *null seat* of padding rows.

Knows: the tensors and how a round moves them on. Does not know: requests, models, who drafts.

Shapes: N seats, L history tokens, K drafts at most, P pages of the longest context, n the requests
of one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.engine.types import NULL_PAGE
from outrider_worker.kv import PAGE_TOKENS


@dataclass(frozen=True)
class SeatState:
    """One line per seat; all int64, all on the device, all static."""

    history: Tensor
    """[N + 1, L] prompt and output; the drafts under judgement lie behind the known tokens."""
    known: Tensor
    """[N + 1] committed tokens, including the anchor: the last one, which has no K/V yet."""
    prompt_tokens: Tensor
    """[N + 1] length of the original prompt."""
    room: Tensor
    """[N + 1] tokens it may still emit; 0 in an ended or empty seat, which then gets no rows."""
    draft_len: Tensor
    """[N + 1] drafts at hand."""
    draft_bins: Tensor
    """[N + 1, K] their score bins."""
    page_table: Tensor
    """[N + 1, P] pages in position order, filled up with the null page."""

    @classmethod
    def allocate(
        cls,
        seats: int,
        max_context_tokens: int,
        max_draft_tokens: int,
        device: torch.device | str = "cpu",
    ) -> SeatState:
        """Empty seats; histories and page lines have room for a whole round beyond the context."""
        tokens = max_context_tokens + max_draft_tokens + 2

        def zeros(*columns: int) -> Tensor:
            return torch.zeros(seats + 1, *columns, dtype=torch.int64, device=device)

        return cls(
            history=zeros(tokens),
            known=zeros(),
            prompt_tokens=zeros(),
            room=zeros(),
            draft_len=zeros(),
            draft_bins=zeros(max(1, max_draft_tokens)),
            page_table=zeros(-(-tokens // PAGE_TOKENS)),
        )

    @property
    def seats(self) -> int:
        """N, which is also the number of the null seat."""
        return self.known.shape[0] - 1

    def put(self, seat: int, token_ids: Tensor, prompt_tokens: int, room: int) -> None:
        """A request sits down: token_ids [T] are all that is known of it."""
        tokens = token_ids.shape[0]
        self.history[seat, :tokens] = token_ids
        line = slice(seat, seat + 1)  # assigning to one element may wait for an accelerator
        self.known[line] = tokens
        self.prompt_tokens[line] = prompt_tokens
        self.room[line] = room
        self.draft_len[line] = 0

    def write_pages(self, seats: Tensor, columns: Tensor, pages: Tensor) -> None:
        """Entries of the page table; all [X] int64."""
        self.page_table[seats, columns] = pages

    def write_drafts(
        self, seats: Tensor, token_ids: Tensor, lengths: Tensor, bins: Tensor | None = None
    ) -> None:
        """Drafts to be judged next: token_ids [n, d], lengths [n]; bins [n, d] if ranked here."""
        width = token_ids.shape[1]
        columns = self.known[seats][:, None] + torch.arange(width, device=seats.device)
        self.history[seats[:, None], columns] = token_ids
        self.draft_len[seats] = lengths
        if bins is not None:
            self.draft_bins[seats, :width] = bins

    def drafts(self, seats: Tensor, width: int) -> Tensor:
        """[n, width] the drafts under judgement; entries behind a draft's end mean nothing."""
        columns = self.known[seats][:, None] + torch.arange(width, device=seats.device)
        return self.history[seats[:, None], columns]

    def advance(self, seats: Tensor, emitted: Tensor, accepted: Tensor) -> None:
        """Commit a round: emitted [n, W] with accepted + 1 valid columns, accepted [n].

        No seat gets more than its room: an ended one, whose row was wasted, stays as it was.
        """
        known, room = self.known[seats], self.room[seats]
        columns = known[:, None] + torch.arange(emitted.shape[1], device=seats.device)
        self.history[seats[:, None], columns] = emitted
        count = torch.minimum(accepted + 1, room)
        self.known[seats] = known + count
        self.room[seats] = room - count
        self.draft_len[seats] = 0


def page_changes(
    shown: dict[int, list[int]], seats: Sequence[int], pages: Sequence[Sequence[int]]
) -> tuple[list[int], list[int], list[int]]:
    """(seats, columns, pages) by which the page table differs from what it was last shown.

    `shown` is brought up to date. What a line no longer has becomes the null page: rows of drafts
    that nobody will keep may look beyond the slots reserved for them, and must find nobody's.
    """
    lines: list[int] = []
    columns: list[int] = []
    values: list[int] = []
    for seat, line in zip(seats, pages, strict=True):
        before = shown.get(seat, [])
        if before == line:
            continue
        after = [*line, *[NULL_PAGE] * (len(before) - len(line))]
        pairs = zip(before, after, strict=False)
        start = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
        lines.extend([seat] * (len(after) - start))
        columns.extend(range(start, len(after)))
        values.extend(after[start:])
        shown[seat] = list(line)
    return lines, columns, values
