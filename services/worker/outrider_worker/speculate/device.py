"""The seam for drafters that live on the device and draft between two rounds without the host.

Knows the values that pass it and the protocol; knows no drafter's insides. Nothing behind this seam
may wait for the device: no copy to the host, no branch on a tensor's value, no shape that depends
on one. So a round can be launched before the last one was read.

Letters: n requests of the round, N seats (line N is the null seat of padding rows), L tokens of
history kept, d drafts at most.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider_worker.speculate.drafter import DrafterTraits


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The seats of one round, as they stand when it has been committed."""

    seats: Tensor
    """[n] int64, lines of `history`"""
    history: Tensor
    """[N+1, L] int64, prompt and output. A caller that knows how long the longest text can be may
    pass a view of fewer columns; what lies at and behind `known` is anything."""
    known: Tensor
    """[n] int64, tokens known, the anchor included; 0 for a padding row."""
    limit: Tensor
    """[n] int64 ≥ 0, drafts each request may get: its room and caps."""


@dataclass(frozen=True, slots=True)
class DeviceDrafts:
    """What was drafted; entries at and behind a request's length are anything valid."""

    token_ids: Tensor
    """[n, d] int64"""
    lengths: Tensor
    """[n] int64, at most d and the request's limit"""
    bins: Tensor
    """[n, d] int64, score bins 0…15"""


class DeviceDrafter(Protocol):
    """Proposes tokens where the target runs. Like every drafter it changes speed, never text."""

    @property
    def traits(self) -> DrafterTraits: ...

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """At most `tokens` drafts for each request, in tables of d = `tokens` columns."""
        ...
