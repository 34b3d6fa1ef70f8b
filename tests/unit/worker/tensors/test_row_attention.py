"""Attention by rows: the textbook's result, and the same bits in any company."""

import pytest
import torch
from torch import Tensor

from outrider_worker.attention import UnsupportedRows, make_attention
from outrider_worker.attention.base import Rows
from outrider_worker.attention.rows_cpu import RowPlan
from outrider_worker.kv import PAGE_TOKENS, KvPool
from tests.unit.worker.tensors.row_tables import Span, rows_of, without
from tests.unit.worker.tensors.test_block_attention import (
    GROUPED,
    LATENT,
    UNEQUAL,
    Shape,
    filled_pool,
    queries,
    textbook,
)

TEXTS = [[0] * 200] * 3
PAGES = [[1, 2, 3, 4], [9, 5, 7, 6], [8, 10, 12, 11]]
MIXED: list[Span] = [(0, range(149, 150)), (1, range(60, 66)), (2, range(40))]
WIDE = Shape(8, 2, key_dim=80, value_dim=80)
"""More than one strip of columns, and a narrow rest."""


@pytest.fixture(autouse=True)
def threads() -> None:
    torch.set_num_threads(1)


def attend(rows: Rows, shape: Shape, window: int | None = None) -> Tensor:
    pool = filled_pool(shape, 13)
    plan = make_attention("rows").plan(rows, pool, shape.heads, window=window)
    return plan.attend(0, queries(rows, shape)).clone()


@pytest.mark.parametrize("shape", [*GROUPED, WIDE])
@pytest.mark.parametrize("window", [None, 1, 64, 65])
def test_it_is_the_textbooks_attention(shape: Shape, window: int | None) -> None:
    rows = rows_of(TEXTS, PAGES, MIXED)
    expected = textbook(rows, shape, filled_pool(shape, 13), window=window)
    torch.testing.assert_close(attend(rows, shape, window), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("shape", [GROUPED[1], WIDE])
def test_a_rows_bits_do_not_depend_on_company(shape: Shape, window: int | None) -> None:
    whole = attend(rows_of(TEXTS, PAGES, [(0, range(190))]), shape, window)
    for count in (1, 2, 3, 5, 8, 9, 31):
        mixed = rows_of(TEXTS, PAGES, [MIXED[1], (0, range(190 - count, 190)), MIXED[2]])
        own = slice(6, 6 + count)
        assert torch.equal(attend(mixed, shape, window)[own], whole[190 - count :]), count


def test_columns_may_be_views_that_repeat_an_entry() -> None:
    """All rows of a block have its end as their length; a view of one entry is how it comes."""
    rows = rows_of(TEXTS, PAGES, [(0, range(100, 106))])
    seen = rows.lengths[-1:].expand(6)
    assert seen.stride() == (0,)
    copied = attend(without(rows, lengths=seen.contiguous()), GROUPED[1])
    viewed = without(rows, lengths=seen, sequence=rows.sequence[:1].expand(6))
    assert torch.equal(attend(viewed, GROUPED[1]), copied)


def test_two_threads_give_the_same_bits() -> None:
    rows = rows_of(TEXTS, PAGES, [*MIXED, (0, range(150, 190))])
    alone = attend(rows, GROUPED[1])
    torch.set_num_threads(2)
    try:
        assert torch.equal(attend(rows, GROUPED[1]), alone)
    finally:
        torch.set_num_threads(1)


def test_padding_rows_hold_zeros() -> None:
    rows = rows_of(TEXTS, PAGES, MIXED)
    padded = attend(rows.padded_to(60), GROUPED[0])
    assert torch.equal(padded[: rows.count], attend(rows, GROUPED[0]))
    assert not padded[rows.count :].any()


def test_what_lies_behind_a_row_does_not_matter() -> None:
    rows, shape = rows_of(TEXTS, PAGES, [(0, range(70, 72))]), GROUPED[1]
    expected = attend(rows, shape)
    pool = filled_pool(shape, 13)
    behind = 72 - PAGE_TOKENS
    pool.keys[0][PAGES[0][1], :, :, behind:] = 1e6
    pool.values[0][PAGES[0][1], :, behind:] = 1e6
    found = make_attention("rows").plan(rows, pool, shape.heads).attend(0, queries(rows, shape))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [UNEQUAL, *LATENT])
def test_pools_it_does_not_read_go_to_blocks(shape: Shape) -> None:
    rows, pool = rows_of(TEXTS, PAGES, MIXED), filled_pool(shape, 13)
    plan = make_attention("rows").plan(rows, pool, shape.heads)
    assert not isinstance(plan, RowPlan)
    expected = make_attention("blocks").plan(rows, pool, shape.heads)
    assert torch.equal(
        plan.attend(0, queries(rows, shape)), expected.attend(0, queries(rows, shape))
    )


def test_trees_are_refused() -> None:
    rows = rows_of(TEXTS, PAGES, MIXED)
    tree = Rows(**{**vars(without(rows)), "parents": rows.positions})
    with pytest.raises(UnsupportedRows, match="chains only"):
        make_attention("rows").plan(tree, KvPool.of_pages(GROUPED[0], 2, torch.float32), 3)
