"""From named tensors to products.

Knows: how a decoder's linear layers are read, and that products over one input are fused.
Does not know: files, which products a layer has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider_worker.linear import Linear, make_linear
from outrider_worker.model.layers import GatedFeedForward


class Weights(Protocol):
    """A reader of a checkpoint's tensors."""

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor called `name` on the model's device, in `dtype`; None: the model's own."""
        ...


def linear(weights: Weights, name: str, bias: bool = False) -> Linear:
    """The product called `name`."""
    return make_linear(weights(f"{name}.weight"), weights(f"{name}.bias") if bias else None)


def fused_linear(weights: Weights, names: Sequence[str], bias: bool = False) -> Linear:
    """The products called `names` as one, outputs side by side."""

    def joined(kind: str) -> Tensor:
        return torch.cat([weights(f"{name}.{kind}") for name in names])

    return make_linear(joined("weight"), joined("bias") if bias else None)


def feed_forward(weights: Weights, prefix: str, bias: bool = False) -> GatedFeedForward:
    """The gated feed-forward called `prefix`."""
    return GatedFeedForward(
        gate_up=fused_linear(weights, (f"{prefix}.gate_proj", f"{prefix}.up_proj"), bias),
        down=linear(weights, f"{prefix}.down_proj", bias),
    )
