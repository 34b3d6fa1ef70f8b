"""Which rows one forward has: from seats and row counts to the flat row table, on the device.

Two layouts stand for the same rows. *Flat* [b]: what the target forward sees, padding rows at its
end. *Padded* [n, W]: one line per request, what picking, judging and committing see, so that their
shapes do not depend on how drafts are spread over requests.

Knows: seats, rows, the arithmetic between the two layouts. Does not know: models, requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.seats import SeatState


@dataclass(frozen=True)
class RowLayout:
    """b rows of n requests; row r is place `place[r]` of request `request[r]`."""

    rows: Rows
    request: Tensor
    """[b] int64 index into the forward's requests; n for padding rows."""
    place: Tensor
    """[b] int64 0 is a request's first row: its anchor, in a round."""
    requests: int
    """n"""

    def to_padded(self, flat: Tensor, width: int) -> Tensor:
        """[b, …] → [n, width, …]; places without a row hold zeros."""
        table = flat.new_zeros(self.requests + 1, width, *flat.shape[1:])
        table[self.request, self.place] = flat
        return table[:-1]

    def to_flat(self, padded: Tensor) -> Tensor:
        """[n, W, …] → [b, …]; padding rows hold zeros."""
        lines = torch.cat([padded, torch.zeros_like(padded[:1])])
        return lines[self.request, self.place]

    def last_rows(self, counts: Tensor) -> Tensor:
        """[n] flat index of each request's last row; counts [n] are its rows."""
        return counts.cumsum(0) - 1


def lay_out(
    state: SeatState, seats: Tensor, first: Tensor, counts: Tensor, rows: int, uniform: bool = False
) -> RowLayout:
    """The row table of one forward.

    Args:
        seats: [n] int64, each at most once.
        first: [n] int64, position of each request's first row.
        counts: [n] int64, rows of each request from there on; 0 is allowed. Σ counts ≤ rows.
        rows: b; what is left over becomes padding rows on the null seat.
        uniform: all counts are rows / n: no search is needed.
    """
    n = seats.shape[0]
    index = torch.arange(rows, device=seats.device)
    if uniform:
        request = index // (rows // n)
        place = index - request * (rows // n)
        live = torch.ones_like(index, dtype=torch.bool)
    else:
        ends = counts.cumsum(0)
        request = torch.searchsorted(ends, index, right=True)
        live = request < n
        starts = torch.cat([ends - counts, index.new_zeros(1)])
        place = torch.where(live, index - starts[request], 0)
    seat = torch.cat([seats, seats.new_full((1,), state.seats)])[request]
    position = torch.where(live, torch.cat([first, first.new_zeros(1)])[request] + place, 0)
    page = state.page_table[seat, position // PAGE_TOKENS]
    table = Rows(
        token_ids=state.history[seat, position],
        positions=position,
        slots=page * PAGE_TOKENS + position % PAGE_TOKENS,
        sequence=seat,
        lengths=torch.where(live, position + 1, 0),
        page_table=state.page_table,
    )
    return RowLayout(table, request, place, n)
