"""The same model with the fastest kernels there are, for which company matters: plain products and
fused attention over contiguous keys. What batch invariance costs is measured against it.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.model.loader import load_model


def fastest_model(folder: Path) -> CausalLM:
    """`folder` with `F.linear` and scaled dot product attention."""
    with patch("outrider_worker.linear.has_prepacked_linear", return_value=False):
        return load_model(folder, backend=ContiguousAttention()).model


class ContiguousAttention:
    """An AttentionBackend that attends to noise of the right shape: its time is what counts.

    Keys lie as a cache without pages would have them. All sequences have the same rows and lengths.
    """

    def __init__(self) -> None:
        self._caches: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def plan(
        self,
        rows: Rows,
        pool: KvPool,
        query_heads: int,
        scale: float | None = None,
        window: int | None = None,
    ) -> ContiguousPlan:
        """See AttentionBackend.plan."""
        if window is not None:
            raise ValueError("measured without a window")
        sequences, keys = int(rows.sequence.max()) + 1, int(rows.lengths.max())
        shape = sequences, keys
        if shape not in self._caches:
            size = (sequences, pool.kv_heads, keys, pool.key_dim)
            self._caches[shape] = [(torch.randn(size), torch.randn(size)) for _ in pool.keys]
        return ContiguousPlan(self._caches[shape], scale)


class ContiguousPlan:
    """An AttentionPlan over one cache for each layer, keys and values [S, H, L, D]."""

    def __init__(self, caches: list[tuple[Tensor, Tensor]], scale: float | None) -> None:
        self._caches = caches
        self._scale = scale

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See AttentionPlan.attend."""
        keys, values = self._caches[layer]
        queries = q.view(keys.shape[0], -1, *q.shape[1:]).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(q.shape)
