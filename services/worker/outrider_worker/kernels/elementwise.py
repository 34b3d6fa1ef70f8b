"""Normalisation and the gate's product: kernels over rows of float32.

Every row is computed by itself, its sums in an order that the width alone decides, so its bits
cannot depend on how many rows there are.

Knows: arrays. Does not know: tensors, models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider_worker.kernels.compiled import inlined, shared
from outrider_worker.kernels.exponential import exp

LANES = 16
"""Floats of one vector, 512 bits, and partial sums of a row; other machines take several."""

_ZERO, _ONE = np.float32(0), np.float32(1)

Floats = NDArray[np.float32]


@inlined
def inverse_length(row: Floats, eps: np.float32, partial: Floats) -> np.float32:
    """1 / √(|row|² + eps). partial: LANES floats of scratch."""
    partial[:] = _ZERO
    whole = row.shape[0] // LANES * LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            partial[lane] += row[start + lane] * row[start + lane]
    for place in range(whole, row.shape[0]):
        partial[place - whole] += row[place] * row[place]
    total = _ZERO
    for lane in range(LANES):
        total += partial[lane]
    return _ONE / np.sqrt(total + eps)


@shared
def rms_norm(x: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    """out [R, d] = x / √(|x|² + eps) · weight; weight [H, d]: row r takes line r mod H."""
    partial = np.empty(LANES, np.float32)
    for row in range(x.shape[0]):
        scale = inverse_length(x[row], eps, partial)
        factors = weight[row % weight.shape[0]]
        for place in range(x.shape[1]):
            out[row, place] = x[row, place] * scale * factors[place]


@shared
def gate(gate_up: Floats, out: Floats) -> None:
    """out [R, f] = silu(g) · u of gate_up [R, 2f], g first; silu(x) = x / (1 + e^−x)."""
    size = out.shape[1]
    for row in range(out.shape[0]):
        for place in range(size):
            x = gate_up[row, place]
            out[row, place] = x / (_ONE + exp(-x)) * gate_up[row, size + place]
