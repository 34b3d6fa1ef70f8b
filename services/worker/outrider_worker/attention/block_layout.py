"""What one forward's tiling comes to in tensors: where to gather from, what to multiply, buffers.

Knows: tilings, the pool's sizes. Does not know: what is computed with them (attention.blocks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider_worker.attention.tiling import Ints, Tiling, Wave
from outrider_worker.kv import PAGE_TOKENS, KvPool

_CACHED_BYTES = 1 << 20
"""Of keys or values that are read again while they are in a core's cache: half of a usual one."""


@dataclass(frozen=True)
class Index:
    """Where things are gathered from."""

    query: Tensor
    """[V × H × tile rows] into q seen as [R × H, group × Dk]"""
    result: Tensor
    """[R × H] into the tiles' results seen as [N × H × tile rows, group × Dv]"""
    tile_of_visit: Tensor
    """[V]"""
    visits_by_block: Tensor
    """[visits of owned pages]"""
    tiles_by_block: tuple[int, ...]
    """[B]"""
    gathered: Tensor | None
    """[G] pages to copy"""

    @classmethod
    def of(cls, tiling: Tiling, heads: int) -> Index:
        """heads: of the pool."""
        head = np.arange(heads)
        rows = tiling.rows_of_tile[tiling.tile_of_visit]
        tile, place = np.divmod(tiling.place_of_row, tiling.tile_rows)
        result = (tile[:, None] * heads + head) * tiling.tile_rows + place[:, None]
        return cls(
            query=_tensor(rows[:, None, :] * heads + head[:, None]),
            result=_tensor(result),
            tile_of_visit=_tensor(tiling.tile_of_visit),
            visits_by_block=_tensor(tiling.visits_by_block),
            tiles_by_block=tiling.tiles_by_block,
            gathered=_tensor(tiling.gathered_pages) if tiling.gathered_pages.size else None,
        )


@dataclass(frozen=True)
class Scratch:
    """Buffers of one forward, reused by its layers, and the views that the steps need."""

    scores: Tensor
    """[V × H, T, PAGE_TOKENS]"""
    scores_by_row: Tensor
    """[V, H, tile rows, group, PAGE_TOKENS]"""
    scores_by_vector: Tensor
    """[V, H × T, PAGE_TOKENS]"""
    peaks: Tensor
    """[V, H × T]"""
    sums: Tensor
    """[V, H × T]"""
    parts: Tensor
    """[V × H, T, Dv]"""
    parts_by_visit: Tensor
    """[V, H × T × Dv]"""
    query_shape: tuple[int, int, int]
    """V × H, T, Dk"""

    @classmethod
    def allocate(cls, tiling: Tiling, pool: KvPool, group: int) -> Scratch:
        visits, heads, rows = len(tiling.tile_of_visit), pool.kv_heads, tiling.tile_rows
        tiles, height = visits * heads, rows * group
        scores = torch.empty(tiles, height, PAGE_TOKENS)
        parts = torch.empty(tiles, height, pool.value_dim)
        return cls(
            scores=scores,
            scores_by_row=scores.view(visits, heads, rows, group, PAGE_TOKENS),
            scores_by_vector=scores.view(visits, heads * height, PAGE_TOKENS),
            peaks=torch.empty(visits, heads * height),
            sums=torch.empty(visits, heads * height),
            parts=parts,
            parts_by_visit=parts.view(visits, -1),
            query_shape=(tiles, height, pool.key_dim),
        )


@dataclass(frozen=True)
class Step:
    """One batched product: which visits, against which blocks (pages × H) of which source."""

    visits: slice
    blocks: slice
    gathered: bool


def steps_of(tiling: Tiling, pool: KvPool) -> tuple[Step, ...]:
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


def _step(wave: Wave, start: int, end: int, heads: int) -> Step:
    """The visits of `wave` to the pages from `start` to `end`."""
    start, end = max(start, wave.first_page), min(end, wave.end_page)
    to_visit = wave.first_visit - wave.first_page
    return Step(
        visits=slice((start + to_visit) * heads, (end + to_visit) * heads),
        blocks=slice(start * heads, end * heads),
        gathered=wave.gathered,
    )


def mask_of(tiling: Tiling) -> Tensor:
    """[V, 1, tile rows, 1, PAGE_TOKENS]: 0 where the row sees the key, else −inf."""
    key = torch.arange(PAGE_TOKENS)
    hidden = key >= _per_row(tiling, tiling.visible_end)
    if tiling.visible_start is not None:
        hidden |= key < _per_row(tiling, tiling.visible_start)
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def _per_row(tiling: Tiling, bounds: Ints) -> Tensor:
    return _tensor(bounds).view(-1, 1, tiling.tile_rows, 1, 1)


def _tensor(array: Ints) -> Tensor:
    """Flat."""
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1))
