"""Block attention against the textbook, and the bits of a row in any company."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.attention import Rows, UnsupportedRows, blocks, make_attention
from outrider_worker.attention.blocks import BlockAttention, PiecewisePlan
from outrider_worker.attention.tiling import tiling_of
from outrider_worker.kv import PAGE_TOKENS, KvPool
from tests.unit.worker.tensors.row_tables import Span, rows_of, without

DIM = 16


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a pool, and how many query heads share it."""

    heads: int = 3
    kv_heads: int = 1
    key_dim: int = DIM
    value_dim: int = DIM
    values_in_keys: bool = False
    layers: int = 1


GROUPED = [Shape(h, kv) for h, kv in ((3, 1), (9, 3), (4, 4), (7, 1), (8, 1), (16, 1))]
UNEQUAL = Shape(6, 2, key_dim=24, value_dim=8)
LATENT = [Shape(h, 1, key_dim=40, value_dim=32, values_in_keys=True) for h in (16, 80)]
SHAPES = [*GROUPED, UNEQUAL, *LATENT]
WINDOWS = [None, None, 1, 3, 64, 65, 100]


def filled_pool(shape: Shape, pages: int) -> KvPool:
    pool = KvPool.of_pages(shape, pages, torch.float32)
    generator = torch.Generator().manual_seed(pages)
    for tensor in (*pool.keys, *pool.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool


def queries(rows: Rows, shape: Shape) -> Tensor:
    """Queries that depend on sequence and position only, so that a row keeps its own."""
    return torch.stack(
        [
            torch.randn(
                shape.heads, shape.key_dim, generator=torch.Generator().manual_seed(1000 * s + p)
            )
            for s, p in zip(rows.sequence.tolist(), rows.positions.tolist(), strict=True)
        ]
    )


def textbook(
    rows: Rows, shape: Shape, pool: KvPool, scale: float | None = None, window: int | None = None
) -> Tensor:
    """Softmax attention of each row, in float64, one head at a time."""
    q = queries(rows, shape).double() * (scale or shape.key_dim**-0.5)
    out = torch.zeros(rows.count, shape.heads, shape.value_dim, dtype=torch.float64)
    group = shape.heads // shape.kv_heads
    for row, (sequence, end) in enumerate(
        zip(rows.sequence.tolist(), rows.lengths.tolist(), strict=True)
    ):
        pages, seen = rows.page_table[sequence], slice(max(0, end - window) if window else 0, end)
        keys = pool.keys[0][pages].double().permute(1, 0, 3, 2).flatten(1, 2)[:, seen]
        values = pool.values[0][pages].double().transpose(0, 1).flatten(1, 2)[:, seen]
        for head in range(shape.heads):
            weights = (keys[head // group] @ q[row, head]).softmax(0)
            out[row, head] = weights @ values[head // group]
    return out.float()


def attend(
    rows: Rows, pool: KvPool, shape: Shape, scale: float | None = None, window: int | None = None
) -> Tensor:
    plan = BlockAttention().plan(rows, pool, shape.heads, scale, window)
    return plan.attend(0, queries(rows, shape))


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


@given(forwards(), st.sampled_from(SHAPES), st.sampled_from(WINDOWS))
@settings(max_examples=60)
def test_agrees_with_textbook_attention(
    forward: tuple[list[list[int]], list[Span], int], shape: Shape, window: int | None
) -> None:
    pages, spans, total = forward
    pool = filled_pool(shape, total)
    rows = rows_of([[0] * 300] * len(pages), pages, spans)
    out = attend(rows, pool, shape, window=window)
    expected = textbook(rows, shape, pool, window=window)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@given(forwards(), st.sampled_from(SHAPES), st.sampled_from(WINDOWS))
@settings(max_examples=40)
def test_a_row_has_the_same_bits_alone(
    forward: tuple[list[list[int]], list[Span], int], shape: Shape, window: int | None
) -> None:
    pages, spans, total = forward
    pool = filled_pool(shape, total)
    texts = [[0] * 300] * len(pages)
    together = attend(rows_of(texts, pages, spans), pool, shape, window=window)
    row = 0
    for sequence, positions in spans:
        for at in positions:
            only = rows_of(texts, pages, [(sequence, range(at, at + 1))])
            alone = attend(only, pool, shape, window=window)
            assert torch.equal(alone[0], together[row]), f"sequence {sequence} at {at}"
            row += 1


@given(forwards(), st.sampled_from([GROUPED[1], LATENT[0]]), st.sampled_from(WINDOWS))
@settings(max_examples=40)
def test_pages_of_others_and_pages_outside_the_window_are_not_read(
    forward: tuple[list[list[int]], list[Span], int], shape: Shape, window: int | None
) -> None:
    """Whatever is in them: the null page, pages of nobody, of sequences that have no rows."""
    pages, spans, total = forward
    pool = filled_pool(shape, total)
    rows = rows_of([[0] * 300] * len(pages), pages, spans[:2])
    expected = attend(rows, pool, shape, window=window)
    needed = set()
    for sequence, positions in spans[:2]:
        first = max(0, positions.start + 1 - window) if window else 0
        last = positions.stop - 1
        needed.update(pages[sequence][first // PAGE_TOKENS : last // PAGE_TOKENS + 1])
    for page in set(range(total)) - needed:
        pool.keys[0][page] = float("nan")
        pool.values[0][page] = float("nan")
    assert torch.equal(attend(rows, pool, shape, window=window), expected)


def test_the_scale_can_be_given() -> None:
    shape = LATENT[0]
    pool = filled_pool(shape, 4)
    rows = rows_of([[0] * 100], [[3, 1]], [(0, range(80, 84))])
    expected = textbook(rows, shape, pool, scale=0.3)
    torch.testing.assert_close(attend(rows, pool, shape, scale=0.3), expected, rtol=1e-4, atol=1e-5)


def test_pages_shared_by_sequences_are_read_by_all() -> None:
    """A common prefix: both page tables begin with the same page."""
    for shape in (Shape(), LATENT[0]):
        pool = filled_pool(shape, 6)
        pages = [[2, 4], [2, 5]]
        rows = rows_of([[0] * 80] * 2, pages, [(0, range(70, 74)), (1, range(66, 67))])
        expected = textbook(rows, shape, pool)
        torch.testing.assert_close(attend(rows, pool, shape), expected, rtol=1e-4, atol=1e-5)


def test_sequences_are_lines_of_a_table_in_any_order() -> None:
    """Seats: most lines belong to nobody here, and hold what must not be read."""
    shape = Shape()
    pool = filled_pool(shape, 6)
    few = rows_of([[0] * 90] * 2, [[2, 4], [5, 1]], [(0, range(80, 82)), (1, range(70, 75))])
    table = torch.full((9, 40), 10**6)
    table[7, :2], table[3, :2] = few.page_table[0], few.page_table[1]
    many = without(few, sequence=torch.where(few.sequence == 0, 7, 3), page_table=table)
    q = queries(few, shape)
    plans = [BlockAttention().plan(rows, pool, shape.heads) for rows in (few, many)]
    assert torch.equal(plans[0].attend(0, q), plans[1].attend(0, q))


def test_a_window_makes_a_long_sequence_cost_what_a_short_one_does() -> None:
    rows = rows_of([[0] * 640], [list(range(1, 11))], [(0, range(636, 640))])
    tilings = [
        tiling_of(
            rows.lengths.numpy(),
            rows.sequence.numpy(),
            rows.page_table.numpy(),
            tile_rows=2,
            window=window,
        )
        for window in (None, 64, 1)
    ]
    assert [len(t.tile_of_visit) for t in tilings if t] == [20, 4, 2]


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
    shape = Shape(9, 3)
    pool = filled_pool(shape, 4)
    rows = rows_of([[0] * 100], [[1, 2]], [(0, range(90, 95))])
    padded = rows.padded_to(12)
    q = torch.cat([queries(rows, shape), torch.zeros(7, 9, DIM)])
    out = BlockAttention().plan(padded, pool, 9).attend(0, q)
    assert padded.count == 12
    assert torch.equal(out[:5], attend(rows, pool, shape))
    assert out.isfinite().all()


def test_padding_rows_alone_give_zeros() -> None:
    nothing = torch.zeros(3, dtype=torch.int64)
    rows = Rows(nothing, nothing, nothing, nothing, nothing, torch.zeros(1, 1, dtype=torch.int64))
    plan = BlockAttention().plan(rows, filled_pool(UNEQUAL, 2), 6)
    out = plan.attend(0, torch.ones(3, 6, UNEQUAL.key_dim))
    assert out.shape == (3, 6, UNEQUAL.value_dim)
    assert out.count_nonzero() == 0


@pytest.mark.parametrize(
    "tree",
    [{"tail_mask": torch.ones(1, 1, dtype=torch.bool)}, {"parents": torch.zeros(1).long()}],
)
def test_trees_are_refused(tree: dict[str, Tensor]) -> None:
    rows = dataclasses.replace(rows_of([[0]], [[1]], [(0, range(1))]), **tree)
    with pytest.raises(UnsupportedRows, match="chains only"):
        BlockAttention().plan(rows.padded_to(3), filled_pool(Shape(), 2), 3)


def test_a_window_without_a_key_is_refused() -> None:
    rows = rows_of([[0]], [[1]], [(0, range(1))])
    with pytest.raises(UnsupportedRows, match="window of 0 keys"):
        BlockAttention().plan(rows, filled_pool(Shape(), 2), 3, window=0)


def test_other_data_types_are_refused() -> None:
    pool = KvPool.of_pages(Shape(), 2, torch.bfloat16)
    with pytest.raises(UnsupportedRows, match="bfloat16"):
        BlockAttention().plan(rows_of([[0]], [[1]], [(0, range(1))]), pool, 3)


def test_rows_of_unequal_columns_are_refused() -> None:
    one, two = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="one length"):
        Rows(one, one, two, one, one, torch.zeros(1, 1, dtype=torch.int64))


def test_an_unknown_backend_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="known: blocks"):
        make_attention("flush")


@pytest.mark.parametrize("shape", [GROUPED[1], LATENT[0]])
def test_contexts_too_long_for_the_buffers_are_attended_in_pieces(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = filled_pool(shape, 9)
    spans = [(0, range(60, 80)), (1, range(130, 131)), (2, range(3))]
    rows = rows_of([[0] * 140] * 3, [[3, 1], [8, 5, 2], [6]], spans).padded_to(40)
    whole = attend(rows, pool, shape)
    monkeypatch.setattr(blocks, "_MOST_BUFFER_BYTES", 100_000)
    plan = BlockAttention().plan(rows, pool, shape.heads)
    assert isinstance(plan, PiecewisePlan)
    live = rows.lengths > 0
    assert torch.equal(plan.attend(0, queries(rows, shape))[live], whole[live])
