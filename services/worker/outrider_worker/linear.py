"""Linear layers whose rows do not know one another.

Knows: how to multiply [R, in] by a fixed weight so that a row's bits do not depend on R.
Does not know: models, files, attention.

On CPUs `F.linear` picks other kernels for other row counts (and packs the weight anew on every
call but for one row). Where our own kernels run, a weight goes by panels (kernels.panel_linear).
Elsewhere two products do not, from two rows on; one single row, which either may treat
differently, is then run as two:

*Packed*, oneDNN's prepacked product: bit-equal for every row count (checked on AVX2 and AVX-512,
one thread and two, 1 to 160 rows) and the fastest for large weights. Its call costs 18 µs.

*Split*, a batched product of MKL over equal shares of the outputs, one for each thread, so that no
thread count cuts the inner dimension: a call costs 1 µs and all threads get equal work, which takes
a sixth off SmolLM2's small products at 1 to 32 rows. It is bit-equal for inner sizes up to 1536 on
AVX-512 (each row count to 200) and not for every shape, so it serves only those seen to pass here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_worker.kernels import have_kernels

_PACK_FOR_ROWS = 8
"""Row count oneDNN picks its packed layout for: between one row and a verify round."""

_SPLIT_ELEMENTS = 1 << 20
"""Weights up to this size are split; larger ones (3072 × 576) are faster packed from 4 rows on."""

_SHARE_OUTPUTS = 64
"""Outputs that a share has at least."""

_CHECKED_ROWS = (*range(1, 36), 48, 63, 64, 65, 96, 127, 128, 129, 200)
"""Row counts compared with `_ALL_ROWS`: below, at and across kernels' block sizes."""

_ALL_ROWS = 256


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


class SplitLinear:
    """Equal shares of the outputs, each an ordinary product: see the module's docstring."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        out, width = weight.shape
        self.shares = _shares(out)
        by_share = weight.view(self.shares, out // self.shares, width)
        self._weight = by_share.transpose(1, 2).contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        y = self._product(x.expand(2, -1).contiguous() if rows == 1 else x)[:rows]
        return y if self._bias is None else y + self._bias

    def _product(self, x: Tensor) -> Tensor:
        by_share = torch.bmm(x.expand(self.shares, -1, -1), self._weight)
        return by_share.transpose(0, 1).reshape(x.shape[0], -1)

    @staticmethod
    def serves(weight: Tensor) -> bool:
        """Whether a weight of this shape is small enough and its rows keep their bits here."""
        small = weight.numel() <= _SPLIT_ELEMENTS and weight.dtype is torch.float32
        return small and _split_keeps_bits(*weight.shape, torch.get_num_threads())


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
    if weight.device.type != "cpu" or not has_prepacked_linear():
        return PlainLinear(weight, bias)
    if have_kernels():
        from outrider_worker.kernels.panel_linear import PanelLinear  # compiles where it must

        if PanelLinear.serves(weight):
            return PanelLinear(weight, bias)
    if SplitLinear.serves(weight):
        return SplitLinear(weight, bias)
    return PackedLinear(weight, bias)


def _shares(out: int) -> int:
    """How many equal shares `out` outputs are cut into: one for each thread, if they divide."""
    most = min(torch.get_num_threads(), max(1, out // _SHARE_OUTPUTS))
    return next(shares for shares in range(most, 0, -1) if out % shares == 0)


@lru_cache(maxsize=256)
def _split_keeps_bits(out: int, width: int, threads: int) -> bool:
    """Whether rows of noise have the same bits at every row count, and in other places.

    threads is part of the key: kernels share work out by it.
    """
    generator = torch.Generator().manual_seed(width)
    linear = SplitLinear(torch.randn(out, width, generator=generator))
    rows = torch.randn(_ALL_ROWS, width, generator=generator)
    whole = linear(rows)
    moved = torch.equal(linear(rows.flip(0)), whole.flip(0))
    return moved and all(
        torch.equal(linear(rows[-count:].clone()), whole[-count:]) for count in _CHECKED_ROWS
    )
