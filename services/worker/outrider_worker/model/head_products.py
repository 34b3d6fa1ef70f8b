"""Products in which every head has a matrix of its own.

Knows: how to multiply [R, H, in] by [H, in, out] so that a row's bits do not depend on R: on CPUs,
in tiles of a fixed number of rows, which is checked to treat all places alike.
Does not know: attention, what the heads are.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.attention.tile_choice import places_alike

_TILE_ROWS = (8, 6, 16, 1)
"""By preference. A decode round has few rows, and the weights are read once per tile."""


class HeadProducts:
    """y[r, h] = x[r, h] · weight[h]"""

    def __init__(self, weight: Tensor) -> None:
        """weight: [H, in, out], of which a contiguous copy is kept."""
        self._weight = weight.contiguous()
        on_cpu = weight.device.type == "cpu"
        self._tile_rows = _tile_rows(*weight.shape, torch.get_num_threads()) if on_cpu else None

    def __call__(self, x: Tensor) -> Tensor:
        """[R, H, in] → [R, H, out]"""
        if self._tile_rows is None:
            return torch.bmm(x.transpose(0, 1), self._weight).transpose(0, 1)
        return self._tiled(x, self._tile_rows)

    def _tiled(self, x: Tensor, tile_rows: int) -> Tensor:
        rows, (heads, _, size) = x.shape[0], self._weight.shape
        padded = pad(x, (0, 0, 0, 0, 0, -rows % tile_rows))
        tiles = padded.unflatten(0, (-1, tile_rows)).transpose(1, 2).contiguous()
        out = x.new_empty(len(tiles), heads, tile_rows, size)
        for tile, result in zip(tiles, out, strict=True):
            torch.bmm(tile, self._weight, out=result)
        return out.transpose(1, 2).flatten(0, 1)[:rows]


@lru_cache(maxsize=64)
def _tile_rows(heads: int, inner: int, size: int, threads: int) -> int:
    """The first size that gives a row the same bits in every place; of one row, any does.

    threads is part of the key: kernels share work out by it.
    """
    noise = torch.randn(heads, inner, size, generator=torch.Generator().manual_seed(0))
    good = (rows for rows in _TILE_ROWS if places_alike(rows, 1, noise))
    return next(good, 1)
