"""The seam between a model and everything that runs one.

Knows: what a causal language model offers and the one error its making raises.
Does not know: any architecture, file format, or kernel.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import KvPool
from outrider_worker.model.config import ModelConfig


class CausalLM(Protocol):
    """A decoder that turns rows into hidden states and hidden states into logits."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, rows: Rows, pool: KvPool) -> Tensor:
        """Run every row through all layers, writing its K/V into `pool`.

        Returns the hidden states after the final norm, [R, d], in the model's dtype.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, d], any choice of rows of `forward` → [M, V] float32."""
        ...
