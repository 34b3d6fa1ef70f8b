"""The seam to the store: integer sums, added exactly once and read back by bucket of time.

Knows what every store promises (tests/contract/store holds them to it). Does not know what the
fields mean. A *scope* is a set of sums with a sequence of its own per writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

BUCKET_S = 15 * 60.0
KEEP_S = 7 * 24 * 3600.0


class StoreUnavailableError(ConnectionError):
    """The store did not answer, or refused; the batch may or may not have been applied."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sums to add. Resent unchanged until acknowledged; ``sequence`` grows by one per batch."""

    writer: str
    sequence: int
    fields: Mapping[str, int]


class StatsStore(Protocol):
    """Sums by scope. Every method may raise ``StoreUnavailableError``."""

    async def add(self, scope: str, batch: Batch) -> bool:
        """Adds a batch to the newest bucket; False if this writer's batch was applied before."""
        ...

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """The scope's buckets, newest first; empty where nothing was written."""
        ...

    async def close(self) -> None:
        """Ends connections once calls in flight have finished."""
        ...
