"""The pieces decoders are built of.

Knows: normalisation and the gated feed-forward. Does not know: how layers are stacked,
checkpoints' tensor names, attention.

A row's bits must not depend on how many rows there are. Tensors are cut into vectors, tails and
threads' shares at places that move with the row count, so only operations are used whose vector
and scalar code agree: single IEEE operations and exp. (`silu` and complex products do not: they
give other bits in a tail.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider_worker.linear import Linear


class RmsNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019, section 4), over the last dimension.

    Worked out in float32 whatever the dtype of x.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        # x / √(|x|²/d + eps) · w = x / √(|x|² + d·eps) · √d·w
        size = weight.shape[-1]
        self.weight = weight.float() * math.sqrt(size)
        self.eps = size * eps
        self._eps = self.weight.new_tensor(self.eps)  # a float would be converted on every use

    def __call__(self, x: Tensor) -> Tensor:
        """[R, …, d] → [R, …, d]; the weight is [d], or [H, d] for heads of their own."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        inverse = length.mul_(length).add_(self._eps).rsqrt_()
        return (x * inverse).mul_(self.weight).to(x.dtype)


class GatedFeedForward:
    """down(silu(gate(x)) · up(x)) with gate and up in one product (Shazeer 2020)."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        """[R, d] → [R, d]"""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(silu(gate).mul_(up))


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(−x)), of the same bits wherever an element lies. See the module's docstring."""
    return x / x.neg().exp_().add_(1.0)
