"""How rotary frequencies are stretched for texts longer than a model was first trained on.

Knows: the settings of each method and what follows from them. Does not know: tensors, files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """All positions divided by one factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama-3's rotary scaling: long wavelengths are stretched, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, section 3): stretched by part, attention made sharper."""

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    """Frequencies that turn more often than this over the original length are kept."""
    beta_slow: float = 1.0
    """Those that turn less often than this are divided by `factor`."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    """Given by the checkpoint; None where it follows from the other settings."""
    truncate: bool = True
    """Whether the bounds between kept and stretched frequencies are whole dimensions."""

    @property
    def amplitude(self) -> float:
        """What rotated vectors are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._sharpness(self.mscale) / self._sharpness(self.mscale_all_dim)
        return self._sharpness(1.0)

    @property
    def softmax_factor(self) -> float:
        """What DeepSeek multiplies the softmax scale by; its other dimensions do not rotate."""
        return self._sharpness(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _sharpness(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1.0 if self.factor > 1.0 else 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling
