"""What a stateful drafter is fed: how far each seat has been, and the features it has not seen yet.

Features of the last positions of every seat lie in a ring, so that rounds may pass without a feed.
Rows that are rejected leave features there too; the next round writes over them. A seat that is
further behind than the ring reaches is not fed any more, and drafts nothing, until it is seated
anew (docs/adr/0014).

Knows: seats, positions, features. Does not know: what a drafter makes of them, when it is fed.

Letters: N seats, F the width of a feature, n requests of a feed, c chunks of a prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.rows import RowLayout, lay_out
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import FedRows, StatefulDrafter

RING_TOKENS = 64
"""Positions a seat may be behind before a round that adds its longest run."""


@dataclass(frozen=True)
class FeatureShape:
    """How much the target has to say of a position, and how."""

    hidden_size: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class FedChunks:
    """The chunks of one prefill that a drafter takes in: all of them, or `which` [f] int64.

    seats, starts, counts: [c] int64 of all chunks. rows: Σ counts of those that are fed.
    """

    seats: Tensor
    starts: Tensor
    counts: Tensor
    rows: int
    which: Tensor | None = None


@dataclass(frozen=True)
class Feeding:
    """One drafter's state of being fed, by seat; line N is the null seat's."""

    drafter: StatefulDrafter
    fed: Tensor
    """[N + 1] int64: positions 0…fed−1 are in the drafter's state."""
    ring: Tensor | None
    """[N + 1, lines, F] features, position p in line p mod lines; None where none are read."""
    longest_run: int
    """Rows of one request in one round at most."""

    @classmethod
    def allocate(
        cls, drafter: StatefulDrafter, seats: int, longest_run: int, shape: FeatureShape
    ) -> Feeding:
        """Nobody has been fed anything."""
        fed = torch.zeros(seats + 1, dtype=torch.int64, device=shape.device)
        spec = drafter.feature_spec
        if spec is None:
            return cls(drafter, fed, None, longest_run)
        lines, width = ring_lines(longest_run), spec.width(shape.hidden_size)
        ring = torch.zeros(seats + 1, lines, width, dtype=shape.dtype, device=shape.device)
        return cls(drafter, fed, ring, longest_run)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Where the target's features are taken."""
        spec = self.drafter.feature_spec
        return spec.boundaries if spec else ()

    def seat(self, seat: int, fed_tokens: int) -> None:
        """A request sits down whose first so many positions the drafter knows already."""
        self.fed[seat : seat + 1] = fed_tokens

    def keep(self, layout: RowLayout, features: Tensor) -> None:
        """Put a round's features [b, F] into the ring, before it is known which rows stay."""
        if self.ring is not None:
            rows = layout.rows
            self.ring[rows.sequence, rows.positions % self.ring.shape[1]] = features

    def feed(self, state: SeatState, seats: Tensor, rows: int | None) -> None:
        """Feed `seats` [n] all that is committed and new: positions fed … known − 2.

        rows: what they can be together at most; None where nothing waits for the device: then
            there are exactly as many as needed. Seats that do not fit wait for the next feed.
        """
        first = self.fed[seats]
        counts = self._behind(state, seats)
        if rows is None:
            rows = int(counts.sum())
            if rows == 0:
                return
        counts = torch.where(counts.cumsum(0) <= rows, counts, 0)
        layout = lay_out(state, seats, first, counts, rows)
        self._hand_over(state, layout, self._kept(layout), seats, counts)
        self.fed[seats] = first + counts

    def feed_chunks(
        self, state: SeatState, layout: RowLayout, features: Tensor, chunks: FedChunks
    ) -> None:
        """Feed chunks of known text, straight from their forward's rows; features [Σ counts, F].

        To be called when the completing chunks' tokens are known: each row needs the one behind it.
        """
        seats, counts = chunks.seats, chunks.counts
        if chunks.which is not None:
            begins = (counts.cumsum(0) - counts)[chunks.which]
            seats, counts = seats[chunks.which], counts[chunks.which]
            layout = lay_out(state, seats, chunks.starts[chunks.which], counts, chunks.rows)
            features = features[begins[layout.request] + layout.place]
        self._hand_over(state, layout, features, seats, counts)
        self.fed[seats] += counts

    def ready(self, state: SeatState, seats: Tensor) -> Tensor:
        """[n] bool: which of them have been fed all there is."""
        return self.fed[seats] == state.known[seats] - 1

    def _behind(self, state: SeatState, seats: Tensor) -> Tensor:
        """[n] positions to feed, 0 where some of them have left the ring."""
        behind = (state.known[seats] - 1 - self.fed[seats]).clamp(min=0)
        return torch.where(behind <= RING_TOKENS + self.longest_run, behind, 0)

    def _kept(self, layout: RowLayout) -> Tensor | None:
        if self.ring is None:
            return None
        return self.ring[layout.rows.sequence, layout.rows.positions % self.ring.shape[1]]

    def _hand_over(
        self,
        state: SeatState,
        layout: RowLayout,
        features: Tensor | None,
        seats: Tensor,
        counts: Tensor,
    ) -> None:
        rows = layout.rows
        following = state.history[rows.sequence, rows.positions + 1]
        fed = FedRows(
            rows=rows,
            next_ids=torch.where(rows.lengths > 0, following, 0),
            features=None if self.ring is None else features,
            seats=seats,
            counts=counts,
            last=layout.last_rows(counts).clamp(min=0),
        )
        self.drafter.feed(fed)


def ring_lines(longest_run: int) -> int:
    """Lines of a seat's ring: what it may be behind, and a round's rows that may be rejected."""
    return RING_TOKENS + 2 * longest_run


def ring_memory(
    drafter: StatefulDrafter,
    seats: int,
    max_draft_tokens: int,
    hidden_size: int,
    dtype: torch.dtype,
) -> int:
    """Bytes of all seats' rings."""
    spec = drafter.feature_spec
    if spec is None:
        return 0
    entries = (seats + 1) * ring_lines(max_draft_tokens + 1) * spec.width(hidden_size)
    return entries * dtype.itemsize
