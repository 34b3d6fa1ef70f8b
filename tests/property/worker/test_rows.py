"""Seats and row tables against plain Python: the same rows, tokens and slots, one by one."""

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.rows import RowLayout, lay_out
from outrider_worker.seats import SeatState, page_changes

SEATS = 5
CONTEXT_TOKENS = 3 * PAGE_TOKENS
K = 4


@dataclass(frozen=True)
class Asked:
    """One request of a forward: `count` rows of `seat` from position `first` on."""

    seat: int
    first: int
    count: int


@st.composite
def forwards(draw: st.DrawFn) -> list[Asked]:
    seats = draw(st.permutations(range(SEATS)))[: draw(st.integers(1, SEATS))]
    return [
        Asked(seat, draw(st.integers(0, CONTEXT_TOKENS - K - 1)), draw(st.integers(0, K + 1)))
        for seat in seats
    ]


def _state(seed: int = 0) -> SeatState:
    """Random tokens; every page number once, so that a wrong one shows."""
    generator = torch.Generator().manual_seed(seed)
    state = SeatState.allocate(SEATS, CONTEXT_TOKENS, K)
    state.history.random_(1000, generator=generator)
    pages = state.page_table[:-1]
    pages.copy_(1 + torch.randperm(pages.numel(), generator=generator).view(pages.shape))
    state.history[-1] = 0
    return state


def _lay_out(state: SeatState, asked: list[Asked], rows: int, uniform: bool = False) -> RowLayout:
    columns = zip(*((each.seat, each.first, each.count) for each in asked), strict=True)
    seats, first, counts = (torch.tensor(column) for column in columns)
    return lay_out(state, seats, first, counts, rows, uniform)


def _expected_rows(state: SeatState, asked: list[Asked], rows: int) -> list[tuple[int, ...]]:
    """(request, place, seat, position, token, slot, length) of each row."""
    table: list[tuple[int, ...]] = [
        (request, place, each.seat, position, *_token_and_slot(state, each.seat, position))
        for request, each in enumerate(asked)
        for place, position in enumerate(range(each.first, each.first + each.count))
    ]
    padding = (len(asked), 0, SEATS, 0, 0, 0, 0)
    return table + [padding] * (rows - len(table))


def _token_and_slot(state: SeatState, seat: int, position: int) -> tuple[int, int, int]:
    page, offset = divmod(position, PAGE_TOKENS)
    slot = int(state.page_table[seat, page]) * PAGE_TOKENS + offset
    return int(state.history[seat, position]), slot, position + 1


def _rows_of(layout: RowLayout) -> list[tuple[int, ...]]:
    rows = layout.rows
    columns = (
        layout.request,
        layout.place,
        rows.sequence,
        rows.positions,
        rows.token_ids,
        rows.slots,
        rows.lengths,
    )
    return [tuple(row) for row in torch.stack(columns, dim=1).tolist()]


@given(asked=forwards(), padding=st.integers(0, 7), seed=st.integers(0, 3))
def test_each_row_is_where_its_request_is(asked: list[Asked], padding: int, seed: int) -> None:
    state = _state(seed)
    rows = sum(each.count for each in asked) + padding
    layout = _lay_out(state, asked, rows)
    assert _rows_of(layout) == _expected_rows(state, asked, rows)
    assert layout.rows.page_table.data_ptr() == state.page_table.data_ptr()


@given(asked=forwards(), count=st.integers(1, K + 1))
def test_the_uniform_way_gives_the_same_rows(asked: list[Asked], count: int) -> None:
    state = _state()
    even = [Asked(each.seat, each.first, count) for each in asked]
    rows = count * len(even)
    assert _rows_of(_lay_out(state, even, rows, uniform=True)) == _rows_of(
        _lay_out(state, even, rows)
    )


@given(asked=forwards(), padding=st.integers(0, 5))
def test_flat_and_padded_hold_the_same_values(asked: list[Asked], padding: int) -> None:
    rows = sum(each.count for each in asked) + padding
    layout = _lay_out(_state(), asked, rows)
    flat = torch.arange(1, 2 * rows + 1).view(rows, 2)
    padded = layout.to_padded(flat, K + 1)
    lines = iter(flat.tolist())
    for request, each in enumerate(asked):
        expected = [next(lines) for _ in range(each.count)]
        assert padded[request].tolist() == expected + [[0, 0]] * (K + 1 - each.count)
    back = layout.to_flat(padded)
    assert back[: rows - padding].tolist() == flat[: rows - padding].tolist()
    assert not back[rows - padding :].any()


@given(asked=forwards())
def test_last_rows(asked: list[Asked]) -> None:
    some = [each for each in asked if each.count > 0] or [Asked(0, 3, 2)]
    rows = sum(each.count for each in some)
    layout = _lay_out(_state(), some, rows)
    last = layout.last_rows(torch.tensor([each.count for each in some]))
    assert layout.request[last].tolist() == list(range(len(some)))
    assert layout.place[last].tolist() == [each.count - 1 for each in some]


@dataclass
class PlainSeat:
    """A seat as one would write it down."""

    tokens: list[int]
    room: int
    drafts: int = 0


@given(st.data())
@settings(max_examples=80)
def test_seats_move_on_like_lists(data: st.DataObject) -> None:
    """Put, draft, advance at random: the same tokens, room and drafts, on the null seat nothing."""
    state = SeatState.allocate(SEATS, CONTEXT_TOKENS, K)
    plain: dict[int, PlainSeat] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        if len(plain) > 0 and data.draw(st.booleans()):
            some: list[int] = data.draw(st.permutations(sorted(plain)))
            _play_a_round(state, plain, some[: data.draw(st.integers(1, len(some)))], data)
        else:
            seat, known = data.draw(st.integers(0, SEATS - 1)), data.draw(st.integers(1, 9))
            plain[seat] = PlainSeat(list(range(known)), data.draw(st.integers(1, 9)))
            state.put(seat, torch.arange(known), known, plain[seat].room)
        for seat, each in plain.items():
            known = len(each.tokens)
            assert state.history[seat, :known].tolist() == each.tokens
            found = (state.known[seat], state.room[seat], state.draft_len[seat])
            assert tuple(map(int, found)) == (known, each.room, each.drafts)
    null = (state.known, state.room, state.draft_len, state.page_table, state.history)
    assert not any(tensor[SEATS].any() for tensor in null)


def _play_a_round(
    state: SeatState, plain: dict[int, PlainSeat], chosen: list[int], data: st.DataObject
) -> None:
    """Drafts are written and read back, then each seat gets what was emitted, up to its room."""
    seats, n = torch.tensor(chosen), len(chosen)
    lengths = data.draw(st.lists(st.integers(0, K), min_size=n, max_size=n))
    drafts = torch.randint(500, (n, K), generator=torch.Generator().manual_seed(n))
    state.write_drafts(seats, drafts, torch.tensor(lengths), bins=drafts % 16)
    assert torch.equal(state.drafts(seats, K), drafts)
    assert torch.equal(state.draft_bins[seats], drafts % 16)
    assert state.draft_len[seats].tolist() == lengths
    if data.draw(st.booleans()):
        emitted = drafts.new_tensor([[100 + seat] * (K + 1) for seat in chosen])
        state.advance(seats, emitted, torch.tensor(lengths))
        for seat, accepted in zip(chosen, lengths, strict=True):
            count = min(accepted + 1, plain[seat].room)
            plain[seat].tokens += [100 + seat] * count
            plain[seat].room -= count
            plain[seat].drafts = 0
    else:
        for seat, length in zip(chosen, lengths, strict=True):
            plain[seat].drafts = length


page_lines = st.lists(st.integers(1, 6), max_size=4)


@given(st.lists(st.dictionaries(st.integers(0, SEATS - 1), page_lines), max_size=8))
def test_page_changes_keep_the_table_up_to_date(steps: list[dict[int, list[int]]]) -> None:
    """Only what changed is sent, and the beginning that counts is always right."""
    shown: dict[int, list[int]] = {}
    table = torch.zeros(SEATS + 1, 4, dtype=torch.int64)
    for lines in steps:
        before = table.clone()
        seats, columns, pages = page_changes(shown, list(lines), list(lines.values()))
        _write(table, seats, columns, pages)
        for seat, line in lines.items():
            assert table[seat, : len(line)].tolist() == line
        untouched = [seat for seat in range(SEATS + 1) if seat not in lines]
        assert torch.equal(table[untouched], before[untouched])
        assert page_changes(shown, list(lines), list(lines.values())) == ([], [], [])


def _write(table: Tensor, seats: list[int], columns: list[int], pages: list[int]) -> None:
    for seat, column, page in zip(seats, columns, pages, strict=True):
        table[seat, column] = page
