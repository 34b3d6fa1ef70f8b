"""The pieces decoders are built of.

Knows: normalisation, rotary embedding, fused projections, the gated feed-forward.
Does not know: how layers are stacked, checkpoints' tensor names, attention kernels.

Every piece works row by row on contiguous memory: vectorised and scalar code paths of one
function may round differently, so all rows must take the same path.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear import Linear
from .config import Llama3Scaling, ModelConfig, RopeScaling


class RmsNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019, section 4)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._mean = 1.0 / weight.shape[0]
        self._eps = torch.tensor(eps, dtype=weight.dtype, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[R, d] → [R, d]"""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._eps, length, length, value=self._mean).rsqrt_()
        return (x * inverse).mul_(self._weight)


class Rotary:
    """Rotary position embedding over adjacent pairs (Su et al. 2021, section 3.2.2).

    Checkpoints in the Hugging Face layout pair dimension i with i + D/2; `pairs_adjacent` reorders
    their q and k weights once, so that rotating is one complex product. Scores do not change: q
    and k are reordered alike.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        frequencies = _frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angles = torch.outer(torch.arange(config.max_positions).double(), frequencies)
        # Angles are rounded to float32 first, as the reference implementation does.
        self._turns = torch.polar(torch.ones(()), angles.float()).to(device)[:, None, :]

    def turns(self, positions: Tensor) -> Tensor:
        """positions [R] int64 → [R, 1, D/2] complex64, for `rotate`."""
        return self._turns.index_select(0, positions)

    @staticmethod
    def rotate(x: Tensor, turns: Tensor) -> Tensor:
        """x [R, H, D] → [R, H, D], dtype kept."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def pairs_adjacent(projection: Tensor, head_dim: int) -> Tensor:
    """Reorder a q or k weight [H × D, in] (or bias [H × D]) from halves to adjacent pairs."""
    halves = projection.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


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
        return self._down(F.silu(gate).mul_(up))
