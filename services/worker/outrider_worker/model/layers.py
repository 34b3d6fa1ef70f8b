"""The pieces decoders are built of.

Knows: normalisation, rotary embedding, fused projections, the gated feed-forward.
Does not know: how layers are stacked, checkpoints' tensor names, attention kernels.

A row's bits must not depend on how many rows there are. Tensors are cut into vectors, tails and
threads' shares at places that move with the row count, so only operations are used whose vector
and scalar code agree: single IEEE operations and exp. (`silu` and complex products do not: they
give other bits in a tail.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.linear import Linear
from outrider_worker.model.config import Llama3Scaling, ModelConfig, RopeScaling


class RmsNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019, section 4)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        # x / √(|x|²/d + eps) · w = x / √(|x|² + d·eps) · √d·w
        size = weight.shape[0]
        self._weight = weight * math.sqrt(size)
        self._eps = weight.new_tensor(size * eps)

    def __call__(self, x: Tensor) -> Tensor:
        """[R, d] → [R, d]"""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.mul_(length).add_(self._eps).rsqrt_()
        return (x * inverse).mul_(self._weight)


@dataclass(frozen=True)
class Turns:
    """How far the rows of one forward are rotated."""

    cos: Tensor
    """[R, 1, D]"""
    sin: Tensor
    """[R, 1, D], the first half negated"""


class Rotary:
    """Rotary position embedding (Su et al. 2021, section 3.4.2); dimension i pairs with i + D/2."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        frequencies = _frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angles = torch.outer(torch.arange(config.max_positions).double(), frequencies)
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat([cos, cos], -1).unsqueeze(1).to(device, dtype)
        self._sin = torch.cat([-sin, sin], -1).unsqueeze(1).to(device, dtype)

    def turns(self, positions: Tensor) -> Turns:
        """positions [R] int64 → what `rotate` needs, once per forward."""
        return Turns(self._cos.index_select(0, positions), self._sin.index_select(0, positions))

    @staticmethod
    def rotate(x: Tensor, turns: Turns) -> Tensor:
        """x [R, H, D] → [R, H, D], contiguous."""
        rows, heads, head_dim = x.shape
        swapped = x.view(rows, heads, 2, head_dim // 2).flip(2).view(rows, heads, head_dim)
        return (x * turns.cos).add_(swapped.mul_(turns.sin))


def _frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[D/2] float64 angles per position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = theta**-exponents
    if scaling is None:
        return plain
    if isinstance(scaling, Llama3Scaling):
        return _llama3(plain, scaling)
    return plain / scaling.factor


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide slow frequencies by `factor`, keep fast ones, blend in between."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return plain * (kept + (1 - kept) / scaling.factor)


class GatedFeedForward:
    """down(silu(gate(x)) · up(x)) with gate and up in one product (Shazeer 2020)."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: Tensor) -> Tensor:
        """[R, d] → [R, d]"""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(silu(gate).mul_(up))


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(−x)), of the same bits wherever an element lies. See the module's docstring."""
    return x / x.neg().exp_().add_(1.0)
