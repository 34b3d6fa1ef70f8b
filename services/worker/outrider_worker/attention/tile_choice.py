"""How many rows a tile of block attention has: the choice, checked on the machine at hand.

A matrix product of a fixed shape need not treat its rows alike: MKL's AVX2 kernels take rows by
six, and a remainder of one to three gets other bits (8 rows are not safe there, 6 and 16 are). So
a size is only taken when a row's vectors get the same result in every place of the tile.

Knows: the two products of block attention. Does not know: pages, sequences, layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from outrider_worker.kv import PAGE_TOKENS, KvPool, values_within

_CHEAP_VECTORS = 8
"""Query vectors per tile that cost hardly more than one, on AVX2 and on AVX-512 (measured)."""

_MOST_VECTORS = 64

_CHECKED_TILES = 5


@dataclass(frozen=True)
class KeyShape:
    """What of a pool decides the shapes of both products."""

    key_dim: int
    value_dim: int
    values_in_keys: bool = False

    @classmethod
    def of(cls, pool: KvPool) -> KeyShape:
        return cls(pool.key_dim, pool.value_dim, pool.values_in_keys)


def tile_rows_for(group: int, shape: KeyShape) -> int:
    """Rows per tile for `group` query heads per KV head.

    The largest cheap tile that passes the check, else the smallest larger one. A large group is a
    full tile by itself (latent attention: all query heads share one key head). Where none passes,
    the preferred one is taken all the same: the start-up probe then reports it.
    """
    return _checked_choice(group, shape, torch.get_num_threads())


@lru_cache(maxsize=64)
def _checked_choice(group: int, shape: KeyShape, threads: int) -> int:
    """threads is part of the key: kernels share work out by it."""
    candidates = list(_by_preference(group))
    good = (rows for rows in candidates if _treats_places_alike(rows, group, shape))
    return next(good, candidates[0])


def _by_preference(group: int) -> Iterator[int]:
    cheap = max(1, _CHEAP_VECTORS // group)
    yield from range(cheap, 0, -1)
    yield from range(cheap + 1, _MOST_VECTORS // group + 1)


def _treats_places_alike(rows: int, group: int, shape: KeyShape) -> bool:
    """Whether both products give a row's vectors the same bits in every place of a tile."""
    generator = torch.Generator().manual_seed(rows * group)
    keys = torch.randn(_CHECKED_TILES, 1, shape.key_dim, PAGE_TOKENS, generator=generator)
    values = torch.randn(_CHECKED_TILES, 1, PAGE_TOKENS, shape.value_dim, generator=generator)
    if shape.values_in_keys:
        values = values_within(keys, shape.value_dim)
    return all(places_alike(rows, group, pages[:, 0]) for pages in (keys, values))


def places_alike(rows: int, group: int, matrices: Tensor) -> bool:
    """Whether a batched product of tiles by `matrices` [N, in, out] treats their rows alike.

    A tile is rows × group vectors. Rows move by `group`, as each head has its own place in them.
    """
    vectors = rows * group
    generator = torch.Generator().manual_seed(vectors)
    tiles = torch.randn(len(matrices), vectors, matrices.shape[1], generator=generator)
    whole = torch.bmm(tiles, matrices)
    shifts = range(group, vectors, group)
    moved = (torch.bmm(tiles.roll(by, 1), matrices).roll(-by, 1) for by in shifts)
    alone = torch.bmm(tiles[:1], matrices[:1])
    return torch.equal(alone, whole[:1]) and all(torch.equal(m, whole) for m in moved)
