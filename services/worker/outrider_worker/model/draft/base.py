"""The seam between a drafting network and the drafter that runs it.

Knows: what a network that is fed pairs of a token and a hidden state offers.
Does not know: any family of them, how rows are laid out, who keeps what between two rounds.

Letters: b rows, n requests, d the network's hidden size, F the width of a target's feature, V the
target's vocabulary.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import KvPool
from outrider_worker.model.config import ModelConfig


class DraftHead(Protocol):
    """A few layers that turn (the token at i + 1, a hidden state of i) into one that tells i + 2.

    EAGLE (Li et al. 2024, section 3.1) and DeepSeek-V3's multi-token prediction (2024, section
    2.2) are this. After its first step a head is fed its own hidden state in place of the target's.
    """

    @property
    def config(self) -> ModelConfig:
        """Of the layers: sizes of K/V, and in `max_positions` how far the head can draft."""
        ...

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Which hidden states of the target are a feature: see CausalLM.forward_with_features."""
        ...

    @property
    def kept_ids(self) -> Tensor | None:
        """[Vd] int64, the target's tokens that it can draft; None for all."""
        ...

    def fuse(self, features: Tensor) -> Tensor:
        """[b, F] of the target → [b, d], the hidden states that `extend` takes."""
        ...

    def extend(self, token_ids: Tensor, hidden: Tensor, rows: Rows, pool: KvPool) -> Tensor:
        """Run the pairs (token_ids [b], hidden [b, d]) at `rows`, writing their K/V into `pool`.

        Of `rows` all count but its token ids. Returns the hidden states to go on with, [b, d].
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, d], rows of `extend` → [n, V] float32; −inf for what it cannot draft."""
        ...
