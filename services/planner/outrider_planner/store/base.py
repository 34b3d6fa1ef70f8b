"""The seam to the store: integer sums, added exactly once and read back by bucket of time.

Knows what every store promises (tests/contract/store holds them to it). Does not know what the
fields mean. A *scope* is a set of sums with a sequence of its own per writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

KEEP_S = 7 * 24 * 3600.0


class StoreUnavailableError(ConnectionError):
    """The store did not answer; a batch may or may not have been applied."""


class StoreRefusedError(StoreUnavailableError):
    """The store answered that it will not, or with what are no sums; nothing was applied."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sums to add. Resent unchanged until acknowledged; ``sequence`` grows by one per batch."""

    writer: str
    sequence: int
    fields: Mapping[str, int]


class StatsStore(Protocol):
    """Sums by scope. Every method but the last two may raise ``StoreUnavailableError``."""

    async def ping(self) -> None:
        """Returns once the store has answered."""
        ...

    async def add(self, scope: str, batch: Batch) -> bool:
        """Adds a batch to the newest bucket; False if this writer's batch was applied before."""
        ...

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """The scope's newest ``MOST_BUCKETS`` buckets, newest first; empty where nothing was
        written."""
        ...

    def forget(self, scope: str) -> None:
        """Nobody reads this scope any more: what is held of it here may go."""
        ...

    async def close(self) -> None:
        """Ends connections once calls in flight have finished."""
        ...
