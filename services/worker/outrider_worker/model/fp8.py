"""Weights stored as FP8 with one scale per block, as in DeepSeek-V3 (2024, section 3.3.2).

Knows: how scales are named and laid out, and how weights become plain numbers again.
Does not know: files, which weights are stored like this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.model.config import Fp8Blocks


def scale_name(weight_name: str) -> str:
    """The tensor that holds what the blocks of a weight are multiplied by."""
    return f"{weight_name}_scale_inv"


def scale_shape(shape: tuple[int, ...], blocks: Fp8Blocks) -> tuple[int, ...]:
    """One scale per block; blocks at the lower and right edge may be smaller."""
    rows, columns = shape
    return -(-rows // blocks.rows), -(-columns // blocks.columns)


def dequantise(weight: Tensor, scales: Tensor, blocks: Fp8Blocks, dtype: torch.dtype) -> Tensor:
    """weight [out, in] float8_e4m3fn, scales [out blocks, in blocks] → [out, in] in `dtype`.

    One strip of blocks at a time, so that beside weight and result little memory is needed.
    """
    result = torch.empty(weight.shape, dtype=dtype)
    strips = zip(weight.split(blocks.rows), result.split(blocks.rows), scales.float(), strict=True)
    for stored, plain, scale in strips:
        columns = scale.repeat_interleave(blocks.columns)[: weight.shape[1]]
        plain.copy_(stored.float().mul_(columns))
    return result
