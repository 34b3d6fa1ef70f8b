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

from outrider_worker.attention.base import AttentionPlan, Rows, UnsupportedRows
from outrider_worker.attention.tile_choice import KeyShape, tile_rows_for
from outrider_worker.attention.tiling import Ints, Tiling, Wave, tiling_of
from outrider_worker.kv import PAGE_TOKENS, KvPool, values_within

_CACHED_BYTES = 1 << 20
"""Of keys or values that are read again while they are in a core's cache: half of a usual one."""


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
        if rows.tail_mask is not None or rows.parents is not None:
            raise UnsupportedRows("block attention serves chains only: no parents, no tail mask")
        if pool.dtype is not torch.float32:
            raise UnsupportedRows(f"block attention computes in float32, not {pool.dtype}")
        group = query_heads // pool.kv_heads
        tiling = tiling_of(
            lengths=rows.lengths.numpy(),
            sequence=rows.sequence.numpy(),
            page_table=rows.page_table.numpy(),
            tile_rows=tile_rows_for(group, KeyShape.of(pool)),
            window=window,
        )
        if tiling is None:
            return EmptyPlan(pool.value_dim)
        return BlockPlan(pool, tiling, group, pool.key_dim**-0.5 if scale is None else scale)


class EmptyPlan:
    """The plan of a forward that has padding rows only."""

    def __init__(self, value_dim: int) -> None:
        self._value_dim = value_dim

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Zeros."""
        return q.new_zeros(*q.shape[:-1], self._value_dim)


class BlockPlan:
    """Everything about one forward's attention that is the same in every layer.

    Letters: V visits (a tile meeting a page), B blocks of the longest sequence, N tiles, H KV
    heads, T query vectors per tile, Dk and Dv the sizes of a key and of a value, R rows.
    """

    def __init__(self, pool: KvPool, tiling: Tiling, group: int, scale: float) -> None:
        self._pool = pool
        self._scale = torch.tensor(scale)  # a float would be converted on every use
        self._group = group
        self._index = _Index.of(tiling, pool.kv_heads)
        self._steps = _steps(tiling, pool)
        self._mask = _mask(tiling)
        self._scratch = _Scratch.allocate(tiling, pool, group)

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
        gathered = self._index.gathered
        return _Source(pages, pages if gathered is None else self._rows(pages, gathered))

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
        peaks = self._by_block(scratch.peaks_and_none).amax(0)
        shift = self._rows(peaks, index.tile_of_visit).unsqueeze(-1)
        scratch.scores_by_vector.sub_(shift).exp_()
        torch.sum(scratch.scores_by_vector, -1, out=scratch.sums)

    def _combine(self) -> Tensor:
        """Add the blocks of each tile in position order, normalise, hand the rows back."""
        total = _add_in_order(self._by_block(self._scratch.sums_and_none))
        mixed = _add_in_order(self._by_block(self._scratch.parts_and_none))
        mixed = mixed.view(*total.shape, -1).div_(total.unsqueeze(-1))
        return self._rows(mixed.view(-1, self._group * self._pool.value_dim), self._index.result)

    def _multiply(self, left: Tensor, source: _Source, out: Tensor) -> None:
        """out = left · pages, batched over visits and heads, wave by wave.

        left, out: [V × H, T, …].
        """
        pool, copies = source.pool.flatten(0, 1), source.copies.flatten(0, 1)
        for step in self._steps:
            pages = copies if step.gathered else pool
            torch.bmm(left[step.visits], pages[step.blocks], out=out[step.visits])

    def _by_block(self, per_visit: Tensor) -> Tensor:
        """[V + 1, X] → [B, N, X]: block b of every tile, the neutral entry where it has none."""
        found = self._rows(per_visit, self._index.visit_of_block)
        return found.view(self._index.blocks, -1, per_visit.shape[1])

    @staticmethod
    def _rows(table: Tensor, index: Tensor) -> Tensor:
        return table.index_select(0, index)


@dataclass(frozen=True)
class _Index:
    """Where things are gathered from."""

    query: Tensor
    """[V × H × tile rows] into q seen as [R × H, group × D]"""
    result: Tensor
    """[R × H] into the tiles' results seen as [N × H × tile rows, group × D]"""
    tile_of_visit: Tensor
    """[V]"""
    visit_of_block: Tensor
    """[B × N]"""
    blocks: int
    """B"""
    gathered: Tensor | None
    """[G] pages to copy"""

    @classmethod
    def of(cls, tiling: Tiling, heads: int) -> _Index:
        head = np.arange(heads)
        rows = tiling.rows_of_tile[tiling.tile_of_visit]
        tile, place = np.divmod(tiling.place_of_row, tiling.tile_rows)
        result = (tile[:, None] * heads + head) * tiling.tile_rows + place[:, None]
        return cls(
            query=_tensor(rows[:, None, :] * heads + head[:, None]),
            result=_tensor(result),
            tile_of_visit=_tensor(tiling.tile_of_visit),
            visit_of_block=_tensor(tiling.visit_of_block),
            blocks=tiling.visit_of_block.shape[0],
            gathered=_tensor(tiling.gathered_pages) if tiling.gathered_pages.size else None,
        )


@dataclass(frozen=True)
class _Scratch:
    """Buffers of one forward, reused by its layers, and the views that the steps need.

    Those named `_and_none` have one entry more, the neutral one, which stands in for blocks that
    a tile does not have.
    """

    scores: Tensor
    """[V × H, T, PAGE_TOKENS]"""
    scores_by_row: Tensor
    """[V, H, tile rows, group, PAGE_TOKENS]"""
    scores_by_vector: Tensor
    """[V, H × T, PAGE_TOKENS]"""
    peaks: Tensor
    """[V, H × T]"""
    peaks_and_none: Tensor
    sums: Tensor
    """[V, H × T]"""
    sums_and_none: Tensor
    parts: Tensor
    """[V × H, T, Dv]"""
    parts_and_none: Tensor
    """[V + 1, H × T × Dv]"""
    query_shape: tuple[int, int, int]
    """V × H, T, Dk"""

    @classmethod
    def allocate(cls, tiling: Tiling, pool: KvPool, group: int) -> _Scratch:
        visits, heads, rows = len(tiling.tile_of_visit), pool.kv_heads, tiling.tile_rows
        tiles, height = visits * heads, rows * group
        vectors = heads * height
        scores = torch.empty(tiles, height, PAGE_TOKENS)
        peaks, sums = torch.empty(visits + 1, vectors), torch.empty(visits + 1, vectors)
        parts = torch.empty(visits + 1, vectors * pool.value_dim)
        peaks[-1], sums[-1], parts[-1] = float("-inf"), 0.0, 0.0
        return cls(
            scores=scores,
            scores_by_row=scores.view(visits, heads, rows, group, PAGE_TOKENS),
            scores_by_vector=scores.view(visits, vectors, PAGE_TOKENS),
            peaks=peaks[:-1],
            peaks_and_none=peaks,
            sums=sums[:-1],
            sums_and_none=sums,
            parts=parts[:-1].view(tiles, height, pool.value_dim),
            parts_and_none=parts,
            query_shape=(tiles, height, pool.key_dim),
        )


@dataclass(frozen=True)
class _Source:
    """One layer's keys or values, [pages, H, …, …]."""

    pool: Tensor
    copies: Tensor
    """Of the gathered pages; the pool itself where none are gathered."""


@dataclass(frozen=True)
class _Step:
    """One batched product: which visits, against which blocks (pages × H) of which source."""

    visits: slice
    blocks: slice
    gathered: bool


def _steps(tiling: Tiling, pool: KvPool) -> tuple[_Step, ...]:
    """All waves over a few pages that fit the cache, then all over the next: pages come from
    memory once, however many waves read them.
    """
    if len(tiling.waves) == 1:
        return (_step(tiling.waves[0], 0, tiling.waves[0].end_page, pool.kv_heads),)
    first = min(wave.first_page for wave in tiling.waves)
    end = max(wave.end_page for wave in tiling.waves)
    stride = _pages_in_cache(pool)
    return tuple(
        _step(wave, start, start + stride, pool.kv_heads)
        for start in range(first, end, stride)
        for wave in tiling.waves
        if wave.first_page < start + stride and start < wave.end_page
    )


def _pages_in_cache(pool: KvPool) -> int:
    page_bytes = pool.kv_heads * pool.key_dim * PAGE_TOKENS * pool.dtype.itemsize
    return max(1, _CACHED_BYTES // page_bytes)


def _step(wave: Wave, start: int, end: int, heads: int) -> _Step:
    """The visits of `wave` to the pages from `start` to `end`."""
    start, end = max(start, wave.first_page), min(end, wave.end_page)
    to_visit = wave.first_visit - wave.first_page
    return _Step(
        visits=slice((start + to_visit) * heads, (end + to_visit) * heads),
        blocks=slice(start * heads, end * heads),
        gathered=wave.gathered,
    )


def _mask(tiling: Tiling) -> Tensor:
    """[V, 1, tile rows, 1, PAGE_TOKENS]: 0 where the row sees the key, else −inf."""
    key = torch.arange(PAGE_TOKENS)
    hidden = key >= _per_row(tiling, tiling.visible_end)
    if tiling.visible_start is not None:
        hidden |= key < _per_row(tiling, tiling.visible_start)
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def _per_row(tiling: Tiling, bounds: Ints) -> Tensor:
    return _tensor(bounds).view(-1, 1, tiling.tile_rows, 1, 1)


def _add_in_order(blocks: Tensor) -> Tensor:
    """[B, …] → […], one block after the other, so that B leaves the order alone."""
    total, *others = blocks.unbind(0)
    for block in others:
        total += block
    return total


def _tensor(array: Ints) -> Tensor:
    """Flat."""
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1))
