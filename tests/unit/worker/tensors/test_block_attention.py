"""Block attention against the textbook, and the bits of a row in any company."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.attention import Rows, UnsupportedRows, make_attention, tile_choice
from outrider_worker.attention.blocks import BlockAttention
from outrider_worker.attention.tile_choice import tile_rows_for
from outrider_worker.attention.tiling import tiling_of
from outrider_worker.kv import PAGE_TOKENS, KvPool, SlotIndex
from tests.unit.worker.tensors.row_tables import Span, rows_of

D = 16


@dataclasses.dataclass(frozen=True)
class Shape:
    kv_heads: int
    layers: int = 1
    head_dim: int = D


def filled_pool(kv_heads: int, pages: int) -> KvPool:
    pool = KvPool.of_pages(Shape(kv_heads), pages, torch.float32)
    generator = torch.Generator().manual_seed(pages)
    for tensor in (*pool.keys, *pool.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool


def queries(rows: Rows, heads: int) -> Tensor:
    """Queries that depend on sequence and position only, so that a row keeps its own."""
    return torch.stack(
        [
            torch.randn(heads, D, generator=torch.Generator().manual_seed(1000 * s + p))
            for s, p in zip(rows.sequence.tolist(), rows.positions.tolist(), strict=True)
        ]
    )


def textbook(rows: Rows, q: Tensor, pool: KvPool) -> Tensor:
    """Softmax attention of each row, in float64, one head at a time."""
    out = torch.zeros_like(q, dtype=torch.float64)
    group = q.shape[1] // pool.kv_heads
    for row, (sequence, length) in enumerate(
        zip(rows.sequence.tolist(), rows.lengths.tolist(), strict=True)
    ):
        pages = rows.page_table[sequence]
        keys = pool.keys[0][pages].double().permute(1, 0, 3, 2).flatten(1, 2)[:, :length]
        values = pool.values[0][pages].double().transpose(0, 1).flatten(1, 2)[:, :length]
        for head in range(q.shape[1]):
            weights = (keys[head // group] @ q[row, head].double() / D**0.5).softmax(0)
            out[row, head] = weights @ values[head // group]
    return out.float()


def attend(rows: Rows, pool: KvPool, heads: int) -> Tensor:
    return BlockAttention().plan(rows, pool, heads).attend(0, queries(rows, heads))


@st.composite
def forwards(draw: st.DrawFn) -> tuple[list[list[int]], list[Span], int]:
    """Pages of some sequences, which rows run, and the number of pages."""
    count = draw(st.integers(1, 5))
    spans, lengths = [], []
    for sequence in range(count):
        end = draw(st.integers(1, 260))
        spans.append((sequence, range(max(0, end - draw(st.integers(1, 20))), end)))
        lengths.append(-(-end // PAGE_TOKENS))
    total = sum(lengths) + draw(st.integers(1, 12))
    order = draw(st.permutations(range(1, total + 1)))
    pages, taken = [], 0
    for length in lengths:
        pages.append(list(order[taken : taken + length]))
        taken += length
    return pages, draw(st.permutations(spans)), total + 1


HEADS = [(3, 1), (9, 3), (4, 4), (7, 1), (8, 1), (16, 1)]


@given(forwards(), st.sampled_from(HEADS))
@settings(max_examples=40)
def test_agrees_with_textbook_attention(
    forward: tuple[list[list[int]], list[Span], int], heads: tuple[int, int]
) -> None:
    pages, spans, total = forward
    pool = filled_pool(heads[1], total)
    rows = rows_of([[0] * 300] * len(pages), pages, spans)
    out = attend(rows, pool, heads[0])
    expected = textbook(rows, queries(rows, heads[0]), pool)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@given(forwards(), st.sampled_from(HEADS))
@settings(max_examples=40)
def test_a_row_has_the_same_bits_alone(
    forward: tuple[list[list[int]], list[Span], int], heads: tuple[int, int]
) -> None:
    pages, spans, total = forward
    pool = filled_pool(heads[1], total)
    texts = [[0] * 300] * len(pages)
    together = attend(rows_of(texts, pages, spans), pool, heads[0])
    row = 0
    for sequence, positions in spans:
        for at in positions:
            alone = attend(rows_of(texts, pages, [(sequence, range(at, at + 1))]), pool, heads[0])
            assert torch.equal(alone[0], together[row]), f"sequence {sequence} at {at}"
            row += 1


def test_pages_shared_by_sequences_are_read_by_all() -> None:
    """A common prefix: both page tables begin with the same page."""
    pool = filled_pool(1, 6)
    pages = [[2, 4], [2, 5]]
    rows = rows_of([[0] * 80] * 2, pages, [(0, range(70, 74)), (1, range(66, 67))])
    expected = textbook(rows, queries(rows, 3), pool)
    torch.testing.assert_close(attend(rows, pool, 3), expected, rtol=1e-4, atol=1e-5)


def test_scattered_pages_are_copied_and_neighbouring_ones_are_not() -> None:
    spans = [(s, range(100, 101)) for s in range(4)]
    texts = [[0] * 101] * 4
    near = rows_of(texts, [[1, 5], [2, 6], [3, 7], [4, 8]], spans)
    far = rows_of(texts, [[1, 500], [2, 600], [3, 700], [4, 800]], spans)
    for rows, copied in ((near, 0), (far, 8)):
        tiling = tiling_of(
            rows.lengths.numpy(), rows.sequence.numpy(), rows.page_table.numpy(), tile_rows=2
        )
        assert tiling is not None
        assert len(tiling.gathered_pages) == copied


def test_padding_rows_change_nothing_and_stay_finite() -> None:
    pool = filled_pool(3, 4)
    rows = rows_of([[0] * 100], [[1, 2]], [(0, range(90, 95))])
    padded = rows.padded_to(12)
    q = torch.cat([queries(rows, 9), torch.zeros(7, 9, D)])
    out = BlockAttention().plan(padded, pool, 9).attend(0, q)
    assert padded.count == 12
    assert torch.equal(out[:5], attend(rows, pool, 9))
    assert out.isfinite().all()


def test_padding_rows_alone_give_zeros() -> None:
    nothing = torch.zeros(3, dtype=torch.int64)
    rows = Rows(nothing, nothing, nothing, nothing, nothing, torch.zeros(1, 1, dtype=torch.int64))
    out = BlockAttention().plan(rows, filled_pool(1, 2), 3).attend(0, torch.ones(3, 3, D))
    assert out.count_nonzero() == 0


def test_a_tail_mask_is_refused() -> None:
    rows = rows_of([[0]], [[1]], [(0, range(1))])
    tree = dataclasses.replace(rows, tail_mask=torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(UnsupportedRows, match="tail mask"):
        BlockAttention().plan(tree, filled_pool(1, 2), 3)


def test_other_data_types_are_refused() -> None:
    pool = KvPool.of_pages(Shape(1), 2, torch.bfloat16)
    with pytest.raises(UnsupportedRows, match="bfloat16"):
        BlockAttention().plan(rows_of([[0]], [[1]], [(0, range(1))]), pool, 3)


def test_rows_of_unequal_columns_are_refused() -> None:
    one, two = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="one length"):
        Rows(one, one, two, one, one, torch.zeros(1, 1, dtype=torch.int64))


def test_an_unknown_backend_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="known: blocks"):
        make_attention("flush")


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_a_vector_has_the_same_bits_in_every_place_of_a_tile(group: int, head_dim: int) -> None:
    vectors = group * tile_rows_for(group, head_dim)
    vector, page = torch.randn(head_dim), torch.randn(3, head_dim, PAGE_TOKENS)
    scores = torch.bmm(vector.expand(3, vectors, -1).contiguous(), page)
    assert torch.equal(scores, scores[:, :1].expand_as(scores))
    weights, values = torch.rand(PAGE_TOKENS), torch.randn(3, PAGE_TOKENS, head_dim)
    mixed = torch.bmm(weights.expand(3, vectors, -1).contiguous(), values)
    assert torch.equal(mixed, mixed[:, :1].expand_as(mixed))


def test_a_tile_size_that_treats_places_differently_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tile_choice, "_treats_places_alike", lambda vectors, dim: vectors == 28)
    assert tile_choice._checked_choice.__wrapped__(7, 64, 1) == 4
    monkeypatch.setattr(tile_choice, "_treats_places_alike", lambda vectors, dim: vectors <= 6)
    assert tile_choice._checked_choice.__wrapped__(3, 64, 1) == 2
    assert tile_choice._checked_choice.__wrapped__(1, 64, 1) == 6
    assert tile_choice._checked_choice.__wrapped__(7, 64, 1) == 1


def test_the_pool_keeps_what_is_written_and_fits_its_budget() -> None:
    shape = Shape(kv_heads=2, layers=3)
    per_token = KvPool.bytes_per_token(shape, torch.float32)
    assert per_token == 2 * 3 * 2 * D * 4
    pool = KvPool.for_budget(shape, 5 * PAGE_TOKENS * per_token + 1, torch.float32)
    assert pool.pages == 5
    with pytest.raises(ValueError, match="too small"):
        KvPool.for_budget(shape, 2 * PAGE_TOKENS * per_token - 1, torch.float32)
    k, v = torch.randn(2, 2, D), torch.randn(2, 2, D)
    pool.write(1, k, v, SlotIndex.of(torch.tensor([3 * PAGE_TOKENS + 7, PAGE_TOKENS])))
    assert torch.equal(pool.keys[1][3, :, :, 7], k[0])
    assert torch.equal(pool.values[1][1, :, 0], v[1])
    assert pool.keys[0].count_nonzero() == 0
