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
        self._single_row_differs = not self._single_row_agrees(weight.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1 and self._single_row_differs:
            return self._product(x.expand(2, -1).contiguous())[:1]
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        return self._run(x, self._weight, self._bias, "none", [], "")

    def _single_row_agrees(self, width: int) -> bool:
        """Whether one row alone has the bits it has beside another, on noise that would tell."""
        noise = torch.randn(2, width, generator=torch.Generator().manual_seed(0))
        return torch.equal(self._product(noise[:1].contiguous()), self._product(noise)[:1])


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
