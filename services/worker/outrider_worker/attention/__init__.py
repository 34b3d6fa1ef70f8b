"""Attention backends by name, each imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outrider_worker.attention.base import AttentionBackend, AttentionPlan, Rows, UnsupportedRows

__all__ = [
    "BACKENDS",
    "AttentionBackend",
    "AttentionPlan",
    "Rows",
    "UnsupportedRows",
    "make_attention",
]


def _blocks() -> AttentionBackend:
    from outrider_worker.attention.blocks import BlockAttention

    return BlockAttention()


def _triton() -> AttentionBackend:
    from outrider_worker.attention.triton_decode import TritonAttention

    return TritonAttention()


BACKENDS: Mapping[str, Callable[[], AttentionBackend]] = {"blocks": _blocks, "triton": _triton}


def make_attention(name: str) -> AttentionBackend:
    """The backend called `name`. Raises ValueError listing the known ones."""
    try:
        factory = BACKENDS[name]
    except KeyError:
        known = ", ".join(sorted(BACKENDS))
        raise ValueError(f"no attention backend {name!r}; known: {known}") from None
    return factory()
