"""Times of one pass by roofline: what a round costs on an accelerator nobody has at hand.

Knows the dense and the mixture-of-experts model of verify cost over rows, and its constants with
their sources. Does not know plans, acceptance or cost tables.

T(B) = t0 + ((W / BWe)^p + (2·P·B / Fe)^p)^(1/p) + rows · (context · kvB / BWe + c_row), with p = 4,
a soft knee. Above 64 rows a matrix product runs in tiles of 64, hence the staircase. Weights
touched by an MoE grow with the rows: W_dense + W_expert · (1 − (1 − k/E)^B).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider_planner.core.types import FloatArray, IntArray

_KNEE_SHARPNESS = 4.0
_TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Device:
    """Reachable bandwidth and arithmetic: 0.8 and 0.6 of the data sheet."""

    bytes_per_s: float
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class Experts:
    """The expert part of an MoE: bytes of all experts, and how many of them a token visits."""

    weight_bytes: float
    count: int
    per_token: int


@dataclass(frozen=True, slots=True)
class Roofline:
    """One pass of a model. ``parameters``: those a token uses; ``row_s``: logits and sampling."""

    weight_bytes: float
    parameters: float
    kv_bytes_per_token: float
    fixed_s: float
    row_s: float = 2e-6
    experts: Experts | None = None

    def seconds(self, device: Device, rows: IntArray, context_tokens: float) -> FloatArray:
        """Time of a pass over so many rows, each with that much context behind it."""
        tiles: IntArray = np.where(rows > _TILE_ROWS, -(-rows // _TILE_ROWS) * _TILE_ROWS, rows)
        count = rows.astype(np.float64)
        read_s: FloatArray = self._bytes(count) / device.bytes_per_s
        compute_s: FloatArray = 2.0 * self.parameters * tiles.astype(np.float64) / device.flop_per_s
        p = _KNEE_SHARPNESS
        row_s = self.row_s + context_tokens * self.kv_bytes_per_token / device.bytes_per_s
        result: FloatArray = self.fixed_s + (read_s**p + compute_s**p) ** (1 / p) + row_s * count
        return result

    def _bytes(self, rows: FloatArray) -> FloatArray:
        if self.experts is None:
            return np.full(rows.shape, self.weight_bytes)
        missed: FloatArray = (1.0 - self.experts.per_token / self.experts.count) ** rows
        touched: FloatArray = self.weight_bytes + self.experts.weight_bytes * (1.0 - missed)
        return touched


H200 = Device(bytes_per_s=0.8 * 4.8e12, flop_per_s=0.6 * 989e12)

# bf16. Bytes, parameters and KV bytes per token as published with each model's configuration.
TARGETS = {
    "h200_8b": Roofline(16.4e9, 8.2e9, 147e3, fixed_s=0.75e-3),
    "h200_14b": Roofline(29.6e9, 14.8e9, 164e3, fixed_s=0.75e-3),
    "h200_32b": Roofline(65.6e9, 32.8e9, 262e3, fixed_s=0.9e-3),
    "h200_moe_30b_a3b": Roofline(
        3.1e9, 3.3e9, 98e3, fixed_s=1.2e-3, experts=Experts(57.4e9, count=128, per_token=8)
    ),
}

# One step of a chained one-layer drafter with a reduced vocabulary; it looks back only shortly.
DRAFT_STEPS = {
    "h200_8b": Roofline(0.70e9, 0.35e9, 4e3, fixed_s=0.15e-3, row_s=0.3e-6),
    "h200_14b": Roofline(0.95e9, 0.48e9, 4e3, fixed_s=0.15e-3, row_s=0.3e-6),
    "h200_32b": Roofline(1.40e9, 0.70e9, 8e3, fixed_s=0.15e-3, row_s=0.3e-6),
    "h200_moe_30b_a3b": Roofline(0.40e9, 0.20e9, 4e3, fixed_s=0.15e-3, row_s=0.3e-6),
}
