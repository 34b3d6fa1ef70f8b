"""Attention in fixed blocks: the CPU backend, and the one whose bits never depend on company.

A row's result must not change with the other rows, padding, prefill chunking or page layout.
The bits of a matrix product change with its row count, so every product here has one shape:
a tile of `T` query vectors (a few consecutive rows of one sequence, times the query heads that
share a KV head) against one page of 64 keys. Pages are aligned to absolute positions, the last
one is masked to full size, and the partial results are added in position order.

What makes it fast: pages are not copied. A *wave* holds at most one tile per page, so one batched
product over a contiguous range of the pool (pages of others in between are computed and ignored)
serves all sequences: the small query tiles are gathered, the large pages are not. Only where the
pages are shared or too scattered are they gathered, once per layer.

Knows: rows, pages, tiles. Does not know: models, requests, who owns a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider_worker.attention.base import AttentionPlan, Rows, UnsupportedRows, require_chains
from outrider_worker.attention.block_layout import Index, Scratch, mask_of, steps_of
from outrider_worker.attention.tile_choice import KeyShape, tile_rows_for
from outrider_worker.attention.tiling import Tiling, tiling_of
from outrider_worker.kv import PAGE_TOKENS, KvPool, values_within

_MOST_BUFFER_BYTES = 256 << 20
"""Of one plan: beyond, rows are attended in pieces."""


class BlockAttention:
    """Fixed-block attention over the paged pool, in float32 (an AttentionBackend)."""

    def plan(
        self,
        rows: Rows,
        pool: KvPool,
        query_heads: int,
        scale: float | None = None,
        window: int | None = None,
    ) -> AttentionPlan:
        """Tiles, waves, masks and gather indices of one forward."""
        require_chains(rows, window)
        if pool.dtype is not torch.float32:
            raise UnsupportedRows(f"block attention computes in float32, not {pool.dtype}")
        group = query_heads // pool.kv_heads
        factor = pool.key_dim**-0.5 if scale is None else scale

        def plan_of(part: Rows) -> AttentionPlan:
            tiling = _tiling(part, pool, group, window)
            return BlockPlan(pool, tiling, group, factor) if tiling else EmptyPlan(pool.value_dim)

        at_once = _rows_at_once(rows, pool, group, window)
        return plan_of(rows) if rows.count <= at_once else PiecewisePlan(plan_of, rows, at_once)


def _tiling(rows: Rows, pool: KvPool, group: int, window: int | None) -> Tiling | None:
    return tiling_of(
        lengths=rows.lengths.numpy(),
        sequence=rows.sequence.numpy(),
        page_table=rows.page_table.numpy(),
        tile_rows=tile_rows_for(group, KeyShape.of(pool)),
        window=window,
    )


def _rows_at_once(rows: Rows, pool: KvPool, group: int, window: int | None) -> int:
    """How many rows' results of single blocks fit the buffers, if each row were alone in a tile."""
    longest = int(rows.lengths.numpy().max(initial=0))
    blocks = (longest if window is None else min(longest, window + PAGE_TOKENS)) // PAGE_TOKENS + 1
    vectors = group * pool.kv_heads * tile_rows_for(group, KeyShape.of(pool))
    floats = blocks * vectors * (PAGE_TOKENS + 2 * pool.value_dim)
    return max(1, _MOST_BUFFER_BYTES // (floats * pool.dtype.itemsize))


class EmptyPlan:
    """The plan of a forward that has padding rows only."""

    def __init__(self, value_dim: int) -> None:
        self._value_dim = value_dim

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Zeros."""
        return q.new_zeros(*q.shape[:-1], self._value_dim)


class PiecewisePlan:
    """A few rows at a time, for contexts so long that the buffers of all would be too large.

    Pieces are planned anew in every layer, which then costs little beside what they compute.
    """

    def __init__(self, plan_of: Callable[[Rows], AttentionPlan], rows: Rows, size: int) -> None:
        self._plan_of = plan_of
        self._rows = rows
        self._size = size

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See AttentionPlan.attend."""
        pieces = (slice(at, at + self._size) for at in range(0, self._rows.count, self._size))
        return torch.cat(
            [self._plan_of(self._rows.part(piece)).attend(layer, q[piece]) for piece in pieces]
        )


class BlockPlan:
    """Everything about one forward's attention that is the same in every layer.

    Letters: V visits (a tile meeting a page), B blocks of the longest sequence, N tiles, H KV
    heads, T query vectors per tile, Dk and Dv the sizes of a key and of a value, R rows.
    """

    def __init__(self, pool: KvPool, tiling: Tiling, group: int, scale: float) -> None:
        self._pool = pool
        self._scale = torch.tensor(scale)  # a float would be converted on every use
        self._group = group
        self._index = Index.of(tiling, pool.kv_heads)
        self._steps = steps_of(tiling, pool)
        self._mask = mask_of(tiling)
        self._scratch = Scratch.allocate(tiling, pool, group)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See AttentionPlan.attend."""
        scratch = self._scratch
        vectors = (q * self._scale).view(-1, self._group * self._pool.key_dim)
        tiles = self._rows(vectors, self._index.query).view(scratch.query_shape)
        keys = self._source(self._pool.keys[layer])
        self._multiply(tiles, keys, scratch.scores)
        self._exponentiate()
        self._multiply(scratch.scores, self._values(layer, keys), scratch.parts)
        return self._combine().view(*q.shape[:2], -1)

    def _source(self, pages: Tensor) -> _Source:
        """One layer's keys or values: the whole pool, and the copies that gathered waves read."""
        pool, gathered = pages.flatten(0, 1), self._index.gathered
        copies = pool if gathered is None else self._rows(pages, gathered).flatten(0, 1)
        return _Source(pool, copies)

    def _values(self, layer: int, keys: _Source) -> _Source:
        """Where values lie in the keys, the copied keys hold the copied values too.

        So both products find values laid out in one way, copied or not, and give the same bits.
        """
        if not self._pool.values_in_keys:
            return self._source(self._pool.values[layer])
        return _Source(*(values_within(k, self._pool.value_dim) for k in (keys.pool, keys.copies)))

    def _exponentiate(self) -> None:
        """scores → exp(scores − peak), the peak taken over all blocks of the row; and their sums.

        A greatest value is the same in whatever order it is sought, so the blocks need no
        rescaling when they are added.
        """
        scratch, index = self._scratch, self._index
        scratch.scores_by_row.add_(self._mask)
        torch.amax(scratch.scores_by_vector, -1, out=scratch.peaks)
        peaks = self._highest(scratch.peaks)
        shift = self._rows(peaks, index.tile_of_visit).unsqueeze(-1)
        scratch.scores_by_vector.sub_(shift).exp_()
        torch.sum(scratch.scores_by_vector, -1, out=scratch.sums)

    def _highest(self, peaks: Tensor) -> Tensor:
        """[V, X] → [N, X]; at once where all tiles have as many blocks."""
        found = self._rows(peaks, self._index.visits_by_block)
        counts = self._index.tiles_by_block
        if counts[0] == counts[-1]:
            return found.view(len(counts), counts[0], -1).amax(0)
        return _over_blocks(found.split(counts), _raise_to)

    def _combine(self) -> Tensor:
        """Add the blocks of each tile in position order, normalise, hand the rows back."""
        total = self._added(self._scratch.sums)
        mixed = self._added(self._scratch.parts_by_visit)
        mixed = mixed.view(*total.shape, -1).div_(total.unsqueeze(-1))
        return self._rows(mixed.view(-1, self._group * self._pool.value_dim), self._index.result)

    def _multiply(self, left: Tensor, source: _Source, out: Tensor) -> None:
        """out = left · pages, batched over visits and heads, wave by wave.

        left, out: [V × H, T, …].
        """
        for step in self._steps:
            pages = source.copies if step.gathered else source.pool
            torch.bmm(left[step.visits], pages[step.blocks], out=out[step.visits])

    def _added(self, per_visit: Tensor) -> Tensor:
        """[V, X] → [N, X], block after block, so that B leaves the order alone."""
        found = self._rows(per_visit, self._index.visits_by_block)
        return _over_blocks(found.split(self._index.tiles_by_block), Tensor.add_)

    @staticmethod
    def _rows(table: Tensor, index: Tensor) -> Tensor:
        return table.index_select(0, index)


class _Source(NamedTuple):
    """One layer's keys or values, [pages × H, …, …]."""

    pool: Tensor
    copies: Tensor
    """Of the gathered pages; the pool itself where none are gathered."""


def _over_blocks(blocks: Sequence[Tensor], combine: Callable[[Tensor, Tensor], object]) -> Tensor:
    """combine, which changes its first argument, from the first block to the last."""
    total, *others = blocks
    for block in others:
        combine(total if len(block) == len(total) else total[: len(block)], block)
    return total


def _raise_to(values: Tensor, others: Tensor) -> None:
    torch.maximum(values, others, out=values)
