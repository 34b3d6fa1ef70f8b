"""How many rows a tile of block attention has: the choice, checked on the machine at hand.

A matrix product of a fixed shape need not treat its rows alike: MKL's AVX2 kernels take rows by
six, and a remainder of one to three gets other bits (8 rows are not safe there, 6 and 16 are). So
a size is only taken when a vector's result is the same in every place of the tile.

Knows: the two products of block attention. Does not know: pages, sequences, layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from outrider_worker.kv import PAGE_TOKENS

_CHEAP_VECTORS = 8
"""Query vectors per tile that cost hardly more than one, on AVX2 and on AVX-512 (measured)."""

_MOST_VECTORS = 64

_CHECKED_TILES = 5


def tile_rows_for(group: int, head_dim: int) -> int:
    """Rows per tile for `group` query heads per KV head, of `head_dim`.

    The largest cheap tile that passes the check, else the smallest larger one. Where none passes,
    the preferred one is taken all the same: the start-up probe then reports it.
    """
    return _checked_choice(group, head_dim, torch.get_num_threads())


@lru_cache(maxsize=64)
def _checked_choice(group: int, head_dim: int, threads: int) -> int:
    """threads is part of the key: kernels share work out by it."""
    candidates = list(_by_preference(group))
    good = (rows for rows in candidates if _treats_places_alike(rows * group, head_dim))
    return next(good, candidates[0])


def _by_preference(group: int) -> Iterator[int]:
    cheap = max(1, _CHEAP_VECTORS // group)
    yield from range(cheap, 0, -1)
    yield from range(cheap + 1, _MOST_VECTORS // group + 1)


def _treats_places_alike(vectors: int, head_dim: int) -> bool:
    """Whether both products give a vector the same bits in every place of a tile of `vectors`."""
    generator = torch.Generator().manual_seed(vectors)
    keys = torch.randn(_CHECKED_TILES, head_dim, PAGE_TOKENS, generator=generator)
    values = torch.randn(_CHECKED_TILES, PAGE_TOKENS, head_dim, generator=generator)
    return all(_same_everywhere(vectors, pages, generator) for pages in (keys, values))


def _same_everywhere(vectors: int, pages: Tensor, generator: torch.Generator) -> bool:
    tiles = torch.randn(_CHECKED_TILES, vectors, pages.shape[1], generator=generator)
    whole = torch.bmm(tiles, pages)
    moved = (torch.bmm(tiles.roll(shift, 1), pages).roll(-shift, 1) for shift in range(1, vectors))
    alone = torch.bmm(tiles[:1], pages[:1])
    return torch.equal(alone, whole[:1]) and all(torch.equal(m, whole) for m in moved)
