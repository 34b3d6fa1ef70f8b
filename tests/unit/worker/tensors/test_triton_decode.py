"""The Triton kernels, in Triton's interpreter, against block attention on the CPU."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider_worker.attention import Rows, UnsupportedRows, make_attention
from outrider_worker.attention.blocks import BlockAttention
from outrider_worker.engine.types import NULL_PAGE
from outrider_worker.kv import PAGE_TOKENS, KvPool
from tests.unit.worker.tensors.row_tables import Span, rows_of, without

pytest.importorskip("triton")

from outrider_worker.attention import triton_decode
from outrider_worker.attention.triton_decode import TritonAttention

NAN = float("nan")
SHARED_BYTES = 227 * 1024
"""Of one block at most, compute capability 9.0 (CUDA C++ Programming Guide, section 16)."""


@dataclasses.dataclass(frozen=True)
class Shape:
    kv_heads: int = 1
    key_dim: int = 16
    value_dim: int = 16
    values_in_keys: bool = False
    layers: int = 1


def filled_pool(shape: Shape, pages: int, dtype: torch.dtype = torch.float32) -> KvPool:
    pool = KvPool.of_pages(shape, pages, dtype)
    generator = torch.Generator().manual_seed(pages)
    for tensor in pool.keys if shape.values_in_keys else (*pool.keys, *pool.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool


def queries(rows: Rows, heads: int, key_dim: int) -> Tensor:
    """Queries that depend on sequence and position only, so that a row keeps its own."""
    return torch.stack(
        [
            torch.randn(heads, key_dim, generator=torch.Generator().manual_seed(1000 * s + p))
            for s, p in zip(rows.sequence.tolist(), rows.positions.tolist(), strict=True)
        ]
    )


def attend(
    rows: Rows,
    pool: KvPool,
    heads: int,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    q = queries(rows, heads, pool.key_dim).to(pool.dtype)
    return TritonAttention().plan(rows, pool, heads, scale, window).attend(0, q)


def assert_equals_blocks(
    rows: Rows, pool: KvPool, heads: int, scale: float | None = None, window: int | None = None
) -> None:
    q = queries(rows, heads, pool.key_dim)
    expected = BlockAttention().plan(rows, pool, heads, scale, window).attend(0, q)
    out = attend(rows, pool, heads, scale, window)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def single_rows(*lengths: int) -> Rows:
    """One row per length, each the last of a sequence of its own, on scattered pages."""
    counts = [-(-length // PAGE_TOKENS) for length in lengths]
    order = (torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)) + 1).tolist()
    pages = [[order.pop() for _ in range(count)] for count in counts]
    spans: list[Span] = [(s, range(n - 1, n)) for s, n in enumerate(lengths)]
    return rows_of([[0] * n for n in lengths], pages, spans)


SCATTERED = [[9, 2, 5], [7], [3, 8]]
"""Pages of three sequences of at most 192, 64 and 128 tokens, in a pool of 10."""

ROUND: list[Span] = [(2, range(120, 124)), (0, range(150, 151)), (1, range(3))]
"""Sequences in any order, with three, no and two drafts."""


@pytest.mark.parametrize("heads", [1, 20])
def test_every_length_around_a_page_equals_block_attention(heads: int) -> None:
    """Twenty query heads need a second tile."""
    rows = single_rows(1, 31, 63, 64, 65, 129, 200)
    assert_equals_blocks(rows, filled_pool(Shape(), 14), heads)


@pytest.mark.parametrize(
    ("shape", "heads"), [(Shape(2, 64, 64), 8), (Shape(3, 80, 80), 9), (Shape(2, 24, 16), 4)]
)
def test_grouped_heads_on_scattered_pages_equal_block_attention(shape: Shape, heads: int) -> None:
    rows = rows_of([[0] * 192] * 3, SCATTERED, ROUND)
    assert_equals_blocks(rows, filled_pool(shape, 10), heads)


def test_latent_keys_that_hold_their_values_equal_block_attention() -> None:
    """DeepSeek's shapes made small: many heads on one key, whose first part is the value."""
    shape = Shape(kv_heads=1, key_dim=144, value_dim=128, values_in_keys=True)
    rows = rows_of([[0] * 192] * 3, SCATTERED, ROUND)
    assert_equals_blocks(rows, filled_pool(shape, 10), heads=18, scale=0.07)


@pytest.mark.parametrize("window", [1, 7, 64, 100, 500])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    rows = rows_of([[0] * 192] * 3, SCATTERED, ROUND)
    assert_equals_blocks(rows, filled_pool(Shape(), 10), 3, window=window)


def test_a_long_row_is_cut_and_put_together_again() -> None:
    """Forty pages: eight parts of five pages each."""
    rows = single_rows(40 * PAGE_TOKENS - 3, 300)
    assert_equals_blocks(rows, filled_pool(Shape(), 46), 2)


def test_half_precision_keys_are_read_and_added_in_float32() -> None:
    rows = rows_of([[0] * 192] * 3, SCATTERED, ROUND)
    pool = filled_pool(Shape(), 10, torch.bfloat16)
    wide = KvPool((pool.keys[0].float(),), (pool.values[0].float(),))
    q = queries(rows, 4, 16).bfloat16()
    out = TritonAttention().plan(rows, pool, 4).attend(0, q)
    expected = BlockAttention().plan(rows, wide, 4).attend(0, q.float())
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, expected.bfloat16(), rtol=1e-2, atol=1e-2)


def test_the_bits_of_a_row_do_not_depend_on_company() -> None:
    pool = filled_pool(Shape(), 10)
    together = attend(rows_of([[0] * 192] * 3, SCATTERED, ROUND), pool, 2)
    flat = [(sequence, at) for sequence, positions in ROUND for at in positions]
    for row, (sequence, at) in enumerate(flat):
        alone = rows_of([[0] * 192] * 3, SCATTERED, [(sequence, range(at, at + 1))])
        assert torch.equal(attend(alone, pool, 2)[0], together[row])


def test_rows_that_take_turns_keep_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rows = filled_pool(Shape(), 10), rows_of([[0] * 192] * 3, SCATTERED, ROUND)
    together = attend(rows, pool, 2)
    bytes_of_three_rows = 3 * 2 * 8 * (16 + 2) * 4
    monkeypatch.setattr(triton_decode, "_SCRATCH_BYTES", bytes_of_three_rows)
    assert torch.equal(attend(rows, pool, 2), together)


def test_padding_rows_give_zeros_whatever_their_columns_hold() -> None:
    """Stale columns behind length 0 are never followed, not even to the page table."""
    pool = filled_pool(Shape(), 10)
    rows = rows_of([[0] * 192] * 3, SCATTERED, ROUND)
    padded = rows.padded_to(rows.count + 4)
    stale = padded.sequence.clone()
    stale[rows.count :] = 2**40
    poisoned = without(padded, sequence=stale)
    q = torch.cat([queries(rows, 2, 16), torch.full((4, 2, 16), NAN)])
    out = TritonAttention().plan(poisoned, pool, 2).attend(0, q)
    assert torch.equal(out[: rows.count], attend(rows, pool, 2))
    assert out[rows.count :].count_nonzero() == 0


def test_what_a_row_does_not_see_may_be_anything() -> None:
    """NaN in the null page, in others' pages, behind the length and before the window."""
    window, span = 70, range(150, 152)
    rows = rows_of([[0] * 192] * 3, SCATTERED, [(0, span)])
    clean = filled_pool(Shape(), 10)
    expected = attend(rows, clean, 3, window=window)
    poisoned = filled_pool(Shape(), 10)
    first_seen = span.start - window + 1
    for number in range(10):
        if number not in SCATTERED[0]:
            poisoned.keys[0][number] = poisoned.values[0][number] = NAN
    for position in (*range(first_seen), *range(span.stop, 192)):
        page, offset = SCATTERED[0][position // PAGE_TOKENS], position % PAGE_TOKENS
        poisoned.keys[0][page, ..., offset] = poisoned.values[0][page, :, offset] = NAN
    assert poisoned.keys[0][NULL_PAGE].isnan().all()
    assert torch.equal(attend(rows, poisoned, 3, window=window), expected)


def test_no_rows_give_no_results() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    rows = Rows(none, none, none, none, none, torch.zeros(1, 1, dtype=torch.int64))
    out = TritonAttention().plan(rows, filled_pool(Shape(), 2), 3).attend(0, torch.ones(0, 3, 16))
    assert out.shape == (0, 3, 16)


def test_trees_and_empty_windows_are_refused() -> None:
    rows = rows_of([[0]], [[1]], [(0, range(1))])
    tree = dataclasses.replace(rows, parents=torch.zeros(1, dtype=torch.int64))
    backend, pool = make_attention("triton"), filled_pool(Shape(), 2)
    with pytest.raises(UnsupportedRows, match="parents"):
        backend.plan(tree, pool, 3)
    with pytest.raises(UnsupportedRows, match="window of 0"):
        backend.plan(rows, pool, 3, window=0)


def test_the_compiler_takes_the_kernels_and_a_block_fits_the_shared_memory(tmp_path: Path) -> None:
    """For an H200, in a process of its own: this one interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kernel_compiler"],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == ["attend_split", "attend_split", "combine_splits"]
    assert all(int(shared_bytes) <= SHARED_BYTES for _, shared_bytes in lines)


def test_columns_may_be_views_that_repeat_an_entry() -> None:
    """One request's drafts: their line of the page table is a view of one entry."""
    pool = filled_pool(Shape(), 6)
    rows = rows_of([[0] * 70] * 3, [[1, 2], [3, 4], [5, 1]], [(2, range(64, 68))])
    viewed = without(rows, sequence=rows.sequence[:1].expand(4))
    assert viewed.sequence.stride() == (0,)
    assert torch.equal(attend(viewed, pool, 2), attend(rows, pool, 2))
