"""The seam between a model and everything that runs one.

Knows: what a causal language model offers and the one error its making raises.
Does not know: any architecture, file format, or kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import KvPool
from outrider_worker.model.config import ModelConfig


class CausalLM(Protocol):
    """A decoder that turns rows into hidden states and hidden states into logits."""

    @property
    def config(self) -> ModelConfig: ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """[R] int64 → [R, d] in the model's dtype: what the first block is given."""
        ...

    def forward(self, rows: Rows, pool: KvPool) -> Tensor:
        """Run every row through all layers, writing its K/V into `pool`.

        Returns the hidden states after the final norm, [R, d], in the model's dtype.
        """
        ...

    def forward_with_features(
        self, rows: Rows, pool: KvPool, boundaries: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """The same forward, and what it passed on the way: (hidden [R, d], features [R, m·d]).

        boundaries: m places between blocks, in the order in which features are put side by side:
            b is the residual stream after b blocks, 0 the embedding, N before the final norm.
            Without any, the features are the hidden states themselves.
        Hidden states have the bits that `forward` gives them. Raises ValueError for a boundary
        outside 0…N.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, d], any choice of rows of `forward` → [M, V] float32."""
        ...
