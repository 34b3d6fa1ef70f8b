"""Prompt lookup on the device gives the drafts of the one on the host."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.types import Draft, RequestKey
from outrider_worker.speculate import device_ngram
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.drafter import Ask
from outrider_worker.speculate.ngram import NgramDrafter

KEY = RequestKey("o", "r")
COLUMNS = 48

random_texts = st.lists(st.integers(0, 3), max_size=COLUMNS)
looping_texts = st.builds(
    lambda start, period, times: (start + period * times)[:COLUMNS],
    st.lists(st.integers(0, 3), max_size=6),
    st.lists(st.integers(0, 2), min_size=1, max_size=17),
    st.integers(1, COLUMNS),
)
texts = st.lists(st.one_of(random_texts, looping_texts), min_size=1, max_size=5)


def batch_of(histories: list[list[int]], limits: list[int], columns: int = COLUMNS) -> DraftBatch:
    """Texts on shuffled seats of a state that is full of other people's tokens."""
    generator = torch.Generator().manual_seed(len(histories))
    count = len(histories)
    history = torch.randint(0, 3, (2 * count + 1, columns), generator=generator)
    seats = torch.randperm(2 * count, generator=generator)[:count]
    for seat, text in zip(seats.tolist(), histories, strict=True):
        history[seat, : len(text)] = torch.tensor(text, dtype=torch.int64)
    known = torch.tensor([len(text) for text in histories])
    return DraftBatch(seats, history, known, torch.tensor(limits))


def on_the_host(text: list[int], asked: int, max_draft_tokens: int) -> Draft:
    drafter = NgramDrafter(max_draft_tokens)
    drafter.prefill(KEY, text)
    (draft,) = drafter.propose([Ask(KEY, asked)])
    return draft


def read(drafts: DeviceDrafts, row: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    length = int(drafts.lengths[row])
    return tuple(drafts.token_ids[row, :length].tolist()), tuple(drafts.bins[row, :length].tolist())


@pytest.mark.parametrize("window_tokens", [1, 7, 4096])
@given(data=st.data(), histories=texts, tokens=st.integers(0, 8), longest=st.integers(0, 8))
def test_drafts_equal_those_of_the_host(
    window_tokens: int, data: st.DataObject, histories: list[list[int]], tokens: int, longest: int
) -> None:
    """Whatever lies behind a text or on other seats, and however the search is cut in windows."""
    limits = [data.draw(st.integers(0, 9)) for _ in histories]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_ngram, "_WINDOW_TOKENS", window_tokens)
        drafts = DeviceNgramDrafter(longest).propose(batch_of(histories, limits), tokens)
    assert drafts.token_ids.shape == drafts.bins.shape == (len(histories), tokens)
    for row, text in enumerate(histories):
        expected = on_the_host(text, min(limits[row], tokens), longest)
        assert read(drafts, row) == (expected.token_ids, expected.bins)


def test_every_length_of_a_text_that_repeats() -> None:
    """A text of 13 tokens over and over, at each of its lengths, all in one batch."""
    text = [5, 6, 7, 5, 6, 8, 9, 5, 6, 7, 5, 1, 2] * 4
    histories = [text[:length] for length in range(len(text) + 1)]
    batch = batch_of(histories, [6] * len(histories), columns=len(text))
    drafts = DeviceNgramDrafter(6).propose(batch, 6)
    for row, known in enumerate(histories):
        expected = on_the_host(known, 6, 6)
        assert read(drafts, row) == (expected.token_ids, expected.bins)
    assert int(drafts.bins.max()) == 15
    assert int(drafts.lengths[-1]) == 6


def test_a_long_text_is_searched_to_its_start() -> None:
    """The only match lies 20,000 tokens back, several windows away."""
    text = [11, 12, 13, 14, 15, *range(100, 20_100), 11, 12, 13]
    drafts = DeviceNgramDrafter(4).propose(batch_of([text], [4], columns=20_016), 4)
    assert read(drafts, 0) == ((14, 15, 100, 101), (3,) * 4)


def test_padding_rows_draft_nothing() -> None:
    """The null seat knows no token; its line may hold anything."""
    history = torch.zeros(3, 16, dtype=torch.int64)
    nobody = DraftBatch(torch.tensor([2, 2]), history, torch.zeros(2).long(), torch.tensor([4, 0]))
    assert DeviceNgramDrafter(4).propose(nobody, 4).lengths.tolist() == [0, 0]


def test_nothing_is_read_by_the_host() -> None:
    """Tensors without data have nothing to branch on: shapes must follow from shapes."""
    history = torch.empty(5, 9000, dtype=torch.int64, device="meta")
    row = torch.empty(3, dtype=torch.int64, device="meta")
    drafts = DeviceNgramDrafter(4).propose(DraftBatch(row, history, row, row), 4)
    assert drafts.token_ids.shape == drafts.bins.shape == (3, 4)
    assert drafts.lengths.device.type == "meta"
