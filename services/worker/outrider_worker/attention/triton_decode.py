"""Paged attention on a GPU: the "triton" backend.

Every row is computed as in decoding, by itself, over its own length of its sequence's pages: a
verify round and a prefill chunk are both just rows. Nothing is copied to the host and every shape
follows from the row table's, so a forward with this backend can be captured in a CUDA graph.

Knows: how plans map to the kernels' arguments. Does not know: models, requests, who owns a page.
The kernels (triton_kernels) also run on CPUs in Triton's interpreter, which is how they are tested
without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from triton import knobs

from outrider_worker.attention.base import AttentionPlan, Rows, require_chains
from outrider_worker.attention.triton_kernels import attend_split, combine_splits
from outrider_worker.kv import PAGE_TOKENS, KvPool

_HEAD_TILE = 16
"""Query heads of one program: the height of a tensor core's product."""

_KEY_TILE = 128
"""Key dimensions multiplied at once; a latent key of 576 takes five turns."""

_WIDE_VALUE = 256
"""Values beyond this (a latent has 512) fill the registers: more warps, and no pipeline."""

_SPLITS = 8
"""Parts that a long row's keys are cut into, so that few rows still fill a GPU."""

_SPLIT_PAGES = 4
"""Pages of a part at least: shorter rows are not worth cutting."""

_SCRATCH_BYTES = 256 * 2**20
"""Of the parts' results at most; a long prefill's rows take turns."""


@dataclass(frozen=True)
class KernelShape:
    """What the kernels are compiled for: one variant for each value of these.

    group: query heads of one KV head. window: 0 for none.
    widen: multiply in float32, for pools of float32 and in the interpreter, which multiplies
        bfloat16 wrongly.
    """

    group: int
    key_dim: int
    value_dim: int
    window: int
    widen: bool

    @property
    def head_tiles(self) -> int:
        """Programs that share a KV head's query heads out among them."""
        return -(-self.group // _HEAD_TILE)

    def constants_of_combine(self) -> dict[str, int]:
        """Of combine_splits."""
        return {
            "VALUE_DIM": self.value_dim,
            "VALUE_TILE": _tile(self.value_dim),
            "WINDOW": self.window,
            "PAGE_TOKENS": PAGE_TOKENS,
            "SPLITS": _SPLITS,
            "SPLIT_PAGES": _SPLIT_PAGES,
        }

    def constants_of_attend(self) -> dict[str, int]:
        """Of attend_split."""
        return {
            **self.constants_of_combine(),
            "GROUP": self.group,
            "KEY_DIM": self.key_dim,
            "HEAD_TILE": _HEAD_TILE,
            "KEY_TILE": _tile(min(self.key_dim, _KEY_TILE)),
            "WIDEN": self.widen,
        }

    def options_of_attend(self) -> dict[str, int]:
        """How attend_split is compiled. Fused multiply-adds are the compiler's default up to
        Triton 3.9 and are asked for so that they stay."""
        wide = self.value_dim > _WIDE_VALUE
        return {
            "num_warps": 8 if wide else 4,
            "num_stages": 1 if wide else 2,
            "enable_fp_fusion": True,
        }


class TritonAttention:
    """Row-wise paged attention in Triton (an AttentionBackend)."""

    def plan(
        self,
        rows: Rows,
        pool: KvPool,
        query_heads: int,
        scale: float | None = None,
        window: int | None = None,
    ) -> AttentionPlan:
        """Tile sizes and scratch of one forward; looks at shapes only, never at values."""
        require_chains(rows, window)
        return _TritonPlan(rows.contiguous(), pool, query_heads, scale, window or 0)


@dataclass(frozen=True)
class _Scratch:
    """What the splits hand to the second kernel. Entries of empty splits are never read."""

    mixed: Tensor
    """[R, Hq, SPLITS, Dv] float32"""
    peaks: Tensor
    """[R, Hq, SPLITS] float32"""
    totals: Tensor
    """[R, Hq, SPLITS] float32"""

    @staticmethod
    def bytes_per_row(heads: int, value_dim: int) -> int:
        return heads * _SPLITS * (value_dim + 2) * torch.float32.itemsize

    @classmethod
    def allocate(cls, rows: int, heads: int, value_dim: int, device: torch.device) -> _Scratch:
        def empty(*size: int) -> Tensor:
            return torch.empty(rows, heads, _SPLITS, *size, dtype=torch.float32, device=device)

        return cls(mixed=empty(value_dim), peaks=empty(), totals=empty())


class _TritonPlan:
    """One forward's arguments, the same in every layer but for the pages."""

    def __init__(
        self, rows: Rows, pool: KvPool, query_heads: int, scale: float | None, window: int
    ) -> None:
        self._rows, self._pool, self._heads = rows, pool, query_heads
        self._scale = pool.key_dim**-0.5 if scale is None else scale
        self._shape = KernelShape(
            group=query_heads // pool.kv_heads,
            key_dim=pool.key_dim,
            value_dim=pool.value_dim,
            window=window,
            widen=pool.dtype is torch.float32 or bool(knobs.runtime.interpret),
        )
        fitting = _SCRATCH_BYTES // _Scratch.bytes_per_row(query_heads, pool.value_dim)
        at_once = max(1, min(rows.count, fitting))
        self._turns = [slice(row, row + at_once) for row in range(0, rows.count, at_once)]
        device = rows.lengths.device
        self._scratch = _Scratch.allocate(at_once, query_heads, pool.value_dim, device)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See AttentionPlan.attend. q: [R, Hq, Dk] → [R, Hq, Dv]; zeros for padding rows."""
        if q.stride(2) != 1:
            q = q.contiguous()
        out = q.new_empty(q.shape[0], self._heads, self._pool.value_dim)
        for turn in self._turns:
            self._attend_splits(layer, q[turn], turn)
            self._combine_splits(out[turn], turn)
        return out

    def _attend_splits(self, layer: int, q: Tensor, turn: slice) -> None:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        rows, scratch = self._rows, self._scratch
        # No row has more pages than the table has columns: what every row leaves empty is not run.
        splits = min(_SPLITS, -(-rows.page_table.shape[1] // _SPLIT_PAGES))
        attend_split[(q.shape[0], self._pool.kv_heads * self._shape.head_tiles, splits)](
            q,
            keys,
            values,
            rows.sequence[turn],
            rows.lengths[turn],
            rows.page_table,
            scratch.mixed,
            scratch.peaks,
            scratch.totals,
            *q.stride()[:2],
            *keys.stride(),
            *values.stride(),
            rows.page_table.stride(0),
            self._scale,
            **self._shape.constants_of_attend(),
            **self._shape.options_of_attend(),
        )

    def _combine_splits(self, out: Tensor, turn: slice) -> None:
        combine_splits[(out.shape[0], self._heads)](
            self._scratch.mixed,
            self._scratch.peaks,
            self._scratch.totals,
            self._rows.lengths[turn],
            out,
            **self._shape.constants_of_combine(),
            enable_fp_fusion=True,
        )


def _tile(size: int) -> int:
    """The smallest tile Triton takes that holds `size`: a power of two, 16 at least."""
    return max(16, 1 << (size - 1).bit_length())
