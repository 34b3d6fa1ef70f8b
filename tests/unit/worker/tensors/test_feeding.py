"""What a drafter is fed: every committed position once, with its own feature and the token behind.

A feature here is its position and its seat, and a token's id is its position plus a hundred.
"""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from outrider_worker.feeding import RING_TOKENS, FeatureShape, FedChunks, Feeding, ring_memory
from outrider_worker.rows import RowLayout, lay_out
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import (
    DeviceDrafts,
    DraftBatch,
    FeatureSpec,
    FedRows,
    StateSize,
)
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits

LONGEST_RUN = 5
SEATS, TOKENS = 3, 300
FINAL, STATELESS = FeatureSpec(), StateSize(0)
SHAPE = FeatureShape(2, torch.float32, torch.device("cpu"))


@dataclass
class Mouth:
    """A StatefulDrafter that only notes what it gets: (seat, position, token, next, feature)."""

    feature_spec: FeatureSpec | None = FINAL
    state_size: StateSize = STATELESS
    traits: DrafterTraits = field(
        default_factory=lambda: DrafterTraits("mouth", DrafterCost.AUTOREGRESSIVE, 4)
    )
    got: list[tuple[int, ...]] = field(default_factory=list)
    calls: int = 0

    def allocate(self, seats: int, pages: int) -> None: ...

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        raise AssertionError("nothing is drafted here")

    def feed(self, fed: FedRows) -> None:
        self.calls += 1
        rows = fed.rows
        columns = [rows.sequence, rows.positions, rows.token_ids, fed.next_ids]
        features = fed.features if fed.features is not None else torch.stack(columns[:2][::-1], 1)
        columns += list(features.to(torch.int64).unbind(1))
        lines = zip(*(column.tolist() for column in columns), strict=True)
        live = (rows.lengths > 0).tolist()
        self.got += [line for line, is_live in zip(lines, live, strict=True) if is_live]
        counted = fed.last[fed.counts > 0]
        assert (rows.positions[counted] == self._known[fed.seats[fed.counts > 0]] - 2).all()

    _known: Tensor = field(default_factory=lambda: torch.zeros(0))


class Table:
    """Seats over one text, and the forwards that a round or a chunk would run."""

    def __init__(self, spec: FeatureSpec | None = FINAL) -> None:
        self.mouth = Mouth(feature_spec=spec)
        self.feeding = Feeding.allocate(self.mouth, SEATS, LONGEST_RUN, SHAPE)
        self.state = SeatState.allocate(SEATS, TOKENS, LONGEST_RUN - 1)
        self.state.history[:] = 100 + torch.arange(self.state.history.shape[1])
        self.mouth._known = self.state.known

    def sit(self, seat: int, known: int, fed: int = 0) -> None:
        self.state.known[seat] = known
        self.feeding.seat(seat, fed)

    def round(self, seat: int, drafts: int, accepted: int, junk: bool = True) -> None:
        """Rows of the anchor and of drafts; of rejected ones the features are junk."""
        layout = self._layout(seat, int(self.state.known[seat]) - 1, drafts + 1)
        features = _features(layout)
        if junk:
            features[accepted + 1 :] = -1.0
        self.feeding.keep(layout, features)
        self.state.known[seat] += accepted + 1

    def chunk(self, starts: list[int], counts: list[int], which: list[int] | None = None) -> None:
        seats, first = torch.arange(len(starts)), torch.tensor(starts)
        count = torch.tensor(counts)
        layout = lay_out(self.state, seats, first, count, sum(counts))
        chosen = range(len(starts)) if which is None else which
        chunks = FedChunks(
            seats, first, count, sum(counts[each] for each in chosen),
            None if which is None else torch.tensor(which),
        )  # fmt: skip
        self.feeding.feed_chunks(self.state, layout, _features(layout), chunks)

    def feed(self, seats: list[int], rows: int | None) -> list[tuple[int, ...]]:
        self.mouth.got.clear()
        self.feeding.feed(self.state, torch.tensor(seats), rows)
        return self.mouth.got

    def _layout(self, seat: int, first: int, count: int) -> RowLayout:
        return lay_out(
            self.state, torch.tensor([seat]), torch.tensor([first]), torch.tensor([count]), count
        )


def _features(layout: RowLayout) -> Tensor:
    return torch.stack([layout.rows.positions, layout.rows.sequence], dim=1).float()


def _right(seat: int, first: int, end: int) -> list[tuple[int, ...]]:
    return [(seat, at, 100 + at, 101 + at, at, seat) for at in range(first, end)]


@pytest.mark.parametrize("rows", [None, 40])
def test_every_position_once_with_its_feature_and_the_token_behind(rows: int | None) -> None:
    table = Table()
    table.sit(0, 10, fed=9)
    table.sit(2, 30, fed=29)
    for drafts, accepted in ((4, 4), (4, 0), (3, 1), (0, 0)):
        table.round(0, drafts, accepted)
        table.round(2, drafts, drafts - accepted)
    assert table.feed([2, 0], rows) == [*_right(2, 29, 39), *_right(0, 9, 18)]
    assert table.feed([2, 0], rows) == []
    assert table.feeding.ready(table.state, torch.tensor([2, 0])).tolist() == [True, True]


def test_the_ring_holds_what_a_seat_may_be_behind_and_no_more() -> None:
    table = Table()
    table.sit(1, 20, fed=19)
    for _ in range(RING_TOKENS):
        table.round(1, 4, 0)
    table.round(1, 4, 4)
    assert table.feed([1], 200) == _right(1, 19, 19 + RING_TOKENS + LONGEST_RUN)
    for _ in range(RING_TOKENS + LONGEST_RUN + 1):
        table.round(1, 0, 0)
    assert table.feed([1], 200) == []
    assert not table.feeding.ready(table.state, torch.tensor([1])).any()


def test_who_does_not_fit_into_the_rows_waits_whole() -> None:
    table = Table()
    for seat in range(2):
        table.sit(seat, 10, fed=9)
        table.round(seat, 2, 2)
    assert table.feed([0, 1], 5) == _right(0, 9, 12)
    assert table.feeding.ready(table.state, torch.tensor([0, 1])).tolist() == [True, False]
    assert table.feed([0, 1], 5) == _right(1, 9, 12)


def test_where_nothing_waits_nothing_is_padded_and_no_rows_are_no_feed() -> None:
    table = Table()
    table.sit(0, 10, fed=9)
    assert table.feed([0], None) == []
    assert table.mouth.calls == 0


@pytest.mark.parametrize("which", [None, [0, 1], [1], [0]])
def test_chunks_are_fed_from_their_own_rows(which: list[int] | None) -> None:
    table = Table()
    for seat, known in enumerate((41, 102)):
        table.sit(seat, known)
    table.feeding.seat(1, 2)
    table.chunk([0, 2], [40, 99], which)
    right = [_right(0, 0, 40), _right(1, 2, 101)]
    assert table.mouth.got == [line for each in which or (0, 1) for line in right[each]]
    fed = [(0, 2), (40, 101)]
    assert table.feeding.fed[:2].tolist() == [
        fed[which is None or seat in which][seat] for seat in range(2)
    ]


def test_without_features_the_tokens_are_fed() -> None:
    table = Table(spec=None)
    table.sit(0, 10, fed=9)
    table.round(0, 2, 2)
    assert table.feeding.ring is None
    assert table.feed([0], None) == _right(0, 9, 12)
    assert ring_memory(table.mouth, 9, 4, 2, torch.float32) == 0


def test_the_rings_memory_is_told_before_it_is_taken() -> None:
    table = Table(spec=FeatureSpec((1, 2)))
    ring = table.feeding.ring
    assert ring is not None
    assert ring.nbytes == ring_memory(table.mouth, SEATS, LONGEST_RUN - 1, 2, torch.float32)
