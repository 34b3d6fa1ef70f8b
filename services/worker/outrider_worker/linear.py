"""Linear layers whose rows do not know one another.

Knows: how to multiply [R, in] by a fixed weight so that a row's bits do not depend on R.
Does not know: models, files, attention.

On CPUs `F.linear` picks other kernels for other row counts (and packs the weight anew on every
call but for one row). oneDNN's prepacked product is bit-equal for every row count from 2 on
(checked on AVX2 and AVX-512, one thread and two, 1 to 160 rows) and faster from 2 rows on. For
one single row it may split the inner dimension in another way, so one row is run as two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 2
"""Fewest rows for which kernels are row-count invariant; fewer are padded up to it."""

_PACK_FOR_ROWS = 8
"""Row count oneDNN picks its packed layout for: between one row and a verify round."""


class Linear(Protocol):
    """y = x Wᵀ + b."""

    def __call__(self, x: Tensor) -> Tensor:
        """[R, in] → [R, out]"""
        ...


class PackedLinear:
    """oneDNN-prepacked. Holds the packed weight alone: no plain copy stays behind."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_FOR_ROWS)
        self._bias = bias
        self._run: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows < MIN_ROWS:
            return self(x.expand(MIN_ROWS, -1).contiguous())[:rows]
        return self._run(x, self._weight, self._bias, "none", [], "")


class PlainLinear:
    """`F.linear`: for devices and builds without oneDNN. Batch invariance is left to the probe."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


def has_prepacked_linear() -> bool:
    """Whether this build of torch offers oneDNN's prepacked product."""
    return torch.backends.mkldnn.is_available() and hasattr(
        torch.ops.mkldnn, "_reorder_linear_weight"
    )


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The row-invariant product for the weight's device, [out, in]; the plain one elsewhere."""
    if weight.device.type == "cpu" and has_prepacked_linear():
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
