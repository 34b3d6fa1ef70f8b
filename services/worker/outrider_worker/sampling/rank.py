"""Tokens in order of their logits, ties by the lower id: one total order, the same everywhere.

A logit and its id make one integer key that is compared exactly and never ties, so that neither
the order nor where it is cut depends on a sorting algorithm.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ID_BITS = 32
_LOW = (1 << _ID_BITS) - 1


def ranked(logits: Tensor, count: int) -> Tensor:
    """logits [M, V] float32 → ids [M, count] int64 of the highest, best first."""
    keys = _keys(logits)
    if count < logits.shape[1]:
        best = keys.topk(count, -1).values
    else:
        best = keys.sort(dim=-1, descending=True).values
    return _LOW - (best & _LOW)


def _keys(logits: Tensor) -> Tensor:
    """[M, V] int64 that order as (logit, lower id first).

    IEEE floats order as their bits do, negative ones in reverse; adding 0 makes one zero of two.
    """
    bits = (logits + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1], device=logits.device)
    return (ordered.long() << _ID_BITS).add_(_LOW - ids)
