"""Rotary position embedding.

Knows: frequencies, how they are scaled for long texts, how vectors are rotated.
Does not know: attention, layers, where the settings come from.

Single IEEE operations only, so that a row's bits do not depend on its place: see layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.model.config import ModelConfig
from outrider_worker.model.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
)


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
        scaling = config.rope_scaling
        frequencies = _frequencies(config.head_dim, config.rope_theta, scaling)
        angles = torch.outer(torch.arange(config.max_positions).double(), frequencies)
        amplitude = scaling.amplitude if isinstance(scaling, YarnScaling) else 1.0
        cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
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
    match scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling():
            return _blend(plain, scaling.factor, _kept_by_llama3(plain, scaling))
        case YarnScaling():
            return _blend(plain, scaling.factor, _kept_by_yarn(head_dim, theta, scaling))


def _blend(plain: Tensor, factor: float, kept: Tensor) -> Tensor:
    """Frequencies of which the share `kept` stays and the rest is divided by `factor`."""
    return plain * (kept + (1 - kept) / factor)


def _kept_by_llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow frequencies are stretched, fast ones kept; linear in the frequency in between."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    return ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)


def _kept_by_yarn(head_dim: int, theta: float, scaling: YarnScaling) -> Tensor:
    """As Llama 3's, but linear in the dimension (Peng et al. 2023, section 3.2)."""

    def dimension(turns: float) -> float:
        """Where a frequency turns so often over the original length."""
        wavelengths = scaling.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(wavelengths) / (2 * math.log(theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    span = last - first or 0.001
    return 1 - ((torch.arange(head_dim // 2).double() - first) / span).clamp(0.0, 1.0)
