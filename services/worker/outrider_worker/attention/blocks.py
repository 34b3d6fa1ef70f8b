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

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kv import PAGE_TOKENS, KvPool
from .base import Rows, UnsupportedRows
from .tiling import Ints, Tiling, tile_rows_for, tiling_of


class BlockAttention:
    """Fixed-block attention over the paged pool (an AttentionBackend)."""

    def plan(self, rows: Rows, pool: KvPool, query_heads: int) -> BlockPlan | EmptyPlan:
        """Tiles, waves, masks and gather indices of one forward."""
        if rows.tail_mask is not None:
            raise UnsupportedRows("block attention serves chains only: it takes no tail mask")
        group = query_heads // pool.kv_heads
        tiling = tiling_of(
            lengths=rows.lengths.numpy(),
            sequence=rows.sequence.numpy(),
            page_table=rows.page_table.numpy(),
            tile_rows=tile_rows_for(group),
        )
        if tiling is None:
            return EmptyPlan()
        return BlockPlan(pool, tiling, group)


class EmptyPlan:
    """The plan of a forward that has padding rows only."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return torch.zeros_like(q, memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class _Buffers:
    """Scratch of one forward, reused by its layers. The extra last entry is the neutral one:
    where a tile has no block (it is shorter than the longest), it reads that."""

    scores: Tensor
    """[V × kv_heads, T, PAGE_TOKENS]"""
    peaks: Tensor
    """[V + 1, kv_heads × T], last entry −inf"""
    sums: Tensor
    """[V + 1, kv_heads × T], last entry 0"""
    parts: Tensor
    """[V + 1, kv_heads × T × D], last entry 0"""


class BlockPlan:
    """Everything about one forward's attention that is the same in every layer.

    Letters: V visits (a tile meeting a page), B blocks of the longest sequence, N tiles,
    T query vectors per tile, D head size, R rows.
    """

    def __init__(self, pool: KvPool, tiling: Tiling, group: int) -> None:
        heads = np.arange(pool.kv_heads)
        self._pool = pool
        self._tile = tiling.tile_rows * group
        self._scale = pool.head_dim**-0.5
        self._waves = tiling.waves
        self._gathered = _tensor(tiling.gathered_pages) if tiling.gathered_pages.size else None
        self._group_width = group * pool.head_dim
        # [V, kv_heads, tile_rows] → row of q seen as [R × kv_heads, group × D]
        rows_of_visit = tiling.rows_of_tile[tiling.tile_of_visit]
        self._q_index = _tensor(
            (rows_of_visit[:, None, :] * pool.kv_heads + heads[None, :, None]).ravel()
        )
        self._tile_of_visit = _tensor(tiling.tile_of_visit)
        self._visit_of_block = _tensor(tiling.visit_of_block.ravel())
        self._blocks = tiling.visit_of_block.shape[0]
        self._mask = _mask(tiling, pool.keys.dtype)
        # [R, kv_heads] → vector of the result seen as [N × kv_heads × tile_rows, group × D]
        tile, place = np.divmod(tiling.place_of_row, tiling.tile_rows)
        vector = (tile[:, None] * pool.kv_heads + heads) * tiling.tile_rows + place[:, None]
        self._out_index = _tensor(vector.ravel())
        self._buffers = _buffers(pool, len(tiling.tile_of_visit), self._tile)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See AttentionPlan.attend."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        self._score(q, keys)
        self._exponentiate()
        self._weigh(values)
        return self._combine(q)

    def _score(self, q: Tensor, keys: Tensor) -> None:
        """scores = scale · q·K + mask, wave by wave."""
        scores, head_dim = self._buffers.scores, self._pool.head_dim
        vectors = (q * self._scale).view(-1, self._group_width).index_select(0, self._q_index)
        tiles = vectors.view(-1, self._tile, head_dim)
        self._multiply(tiles, keys, out=scores)
        rows = self._mask.shape[2]
        scores.view(self._mask.shape[0], -1, rows, self._tile // rows, PAGE_TOKENS).add_(self._mask)

    def _exponentiate(self) -> None:
        """scores = exp(scores − peak of the row over all its blocks), and their block sums."""
        buffers, visits = self._buffers, self._mask.shape[0]
        scores = buffers.scores.view(visits, -1, PAGE_TOKENS)
        torch.amax(scores, -1, out=buffers.peaks[:visits])
        peaks = self._by_block(buffers.peaks).amax(0)
        scores.sub_(peaks.index_select(0, self._tile_of_visit).unsqueeze(-1)).exp_()
        torch.sum(scores, -1, out=buffers.sums[:visits])

    def _weigh(self, values: Tensor) -> None:
        """parts = p·V of every visit."""
        scores = self._buffers.scores
        parts = self._buffers.parts[:-1].view(scores.shape[0], self._tile, -1)
        self._multiply(scores, values, out=parts)

    def _combine(self, q: Tensor) -> Tensor:
        """Add the blocks of each tile in position order, normalise, hand rows back."""
        total = _add_in_order(self._by_block(self._buffers.sums))
        mixed = _add_in_order(self._by_block(self._buffers.parts))
        mixed = mixed.view(*total.shape, -1).div_(total.unsqueeze(-1))
        out = mixed.view(-1, self._group_width).index_select(0, self._out_index)
        return out.view(q.shape)

    def _multiply(self, left: Tensor, pages: Tensor, out: Tensor) -> None:
        """Batched product of visits with their pages, [V × kv_heads, …] each, per wave."""
        gathered = None if self._gathered is None else pages.index_select(0, self._gathered)
        heads = self._pool.kv_heads
        for wave in self._waves:
            source = gathered if wave.gathered else pages
            assert source is not None
            right = source[wave.first_page : wave.end_page].flatten(0, 1)
            here = slice(wave.first_visit * heads, wave.end_visit * heads)
            torch.bmm(left[here], right, out=out[here])

    def _by_block(self, per_visit: Tensor) -> Tensor:
        """[V + 1, X] → [B, N, X]: block b of every tile, the neutral entry where it has none."""
        return per_visit.index_select(0, self._visit_of_block).view(
            self._blocks, -1, per_visit.shape[1]
        )


def _add_in_order(blocks: Tensor) -> Tensor:
    """[B, …] → […], added one block after the other: the order is the same for every B."""
    total = blocks[0]
    for block in blocks[1:]:
        total += block
    return total


def _mask(tiling: Tiling, dtype: torch.dtype) -> Tensor:
    """[V, 1, tile_rows, 1, PAGE_TOKENS]: 0 where the key is visible to the row, else −inf."""
    visible = _tensor(tiling.visible_keys)[:, None, :, None, None]
    hidden = torch.arange(PAGE_TOKENS) >= visible
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _buffers(pool: KvPool, visits: int, tile: int) -> _Buffers:
    heads, dtype = pool.kv_heads, pool.keys.dtype
    buffers = _Buffers(
        scores=torch.empty(visits * heads, tile, PAGE_TOKENS, dtype=dtype),
        peaks=torch.empty(visits + 1, heads * tile, dtype=dtype),
        sums=torch.empty(visits + 1, heads * tile, dtype=dtype),
        parts=torch.empty(visits + 1, heads * tile * pool.head_dim, dtype=dtype),
    )
    buffers.peaks[-1] = float("-inf")
    buffers.sums[-1] = 0.0
    buffers.parts[-1] = 0.0
    return buffers


def _tensor(array: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
