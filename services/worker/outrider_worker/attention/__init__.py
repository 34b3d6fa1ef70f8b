"""Attention backends by name, each imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from outrider_worker.attention.base import AttentionBackend, AttentionPlan, Rows, UnsupportedRows
from outrider_worker.kernels import have_kernels

__all__ = [
    "BACKENDS",
    "AttentionBackend",
    "AttentionPlan",
    "Rows",
    "UnsupportedRows",
    "default_attention",
    "make_attention",
]


def _blocks() -> AttentionBackend:
    from outrider_worker.attention.blocks import BlockAttention

    return BlockAttention()


def _triton() -> AttentionBackend:
    from outrider_worker.attention.triton_decode import TritonAttention

    return TritonAttention()


def _rows() -> AttentionBackend:
    from outrider_worker.attention.rows_cpu import RowAttention

    return RowAttention()


BACKENDS: Mapping[str, Callable[[], AttentionBackend]] = {
    "blocks": _blocks,
    "rows": _rows,
    "triton": _triton,
}


def make_attention(name: str) -> AttentionBackend:
    """The backend called `name`. Raises ValueError listing the known ones."""
    try:
        factory = BACKENDS[name]
    except KeyError:
        known = ", ".join(sorted(BACKENDS))
        raise ValueError(f"no attention backend {name!r}; known: {known}") from None
    return factory()


def default_attention(device: torch.device) -> AttentionBackend:
    """The fastest backend that the device and what is installed can run."""
    if device.type == "cuda":
        return make_attention("triton")
    return make_attention("rows" if have_kernels() else "blocks")
