"""The seams to the store: integer sums, values with versions, and logs that only grow.

Knows what every store promises (tests/contract/store holds them to it). Does not know what the
fields, values and entries mean. A *scope* is a set of sums with a sequence of its own per writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

KEEP_S = 7 * 24 * 3600.0


class StoreUnavailableError(ConnectionError):
    """The store did not answer; a batch may or may not have been applied."""


class StoreRefusedError(StoreUnavailableError):
    """The store answered that it will not, or with what cannot be read; nothing was applied."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sums to add. Resent unchanged until acknowledged; ``sequence`` grows by one per batch."""

    writer: str
    sequence: int
    fields: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Value:
    """A text of which the highest version counts; at one version, the first that came."""

    version: int
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """Entries to append to a log, in order. Resent unchanged like a ``Batch``."""

    writer: str
    sequence: int
    entries: Sequence[str]


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How much of a log is kept, for all its writers together; the smaller bound counts."""

    most_entries: int = 20_000
    most_bytes: int = 64 << 20

    def entries(self, mean_entry_bytes: float) -> int:
        """How many entries of this size may be kept; at least one."""
        return max(min(self.most_entries, int(self.most_bytes / max(mean_entry_bytes, 1.0))), 1)


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


class ValueStore(Protocol):
    """Values by key. Both methods may raise ``StoreUnavailableError``."""

    async def keep(self, key: str, value: Value, keep_s: float | None) -> Value:
        """Keeps a value, unless its version or a newer one is there; returns what is kept now.

        Compared and set in one step, so of many planners that keep one version one wins, and all
        learn which. ``keep_s`` counts from the latest call, None is for ever.
        """
        ...

    async def kept(self, key: str) -> Value | None:
        """What is kept under a key, None where nothing is."""
        ...


class LogStore(Protocol):
    """Logs by name. Both methods may raise ``StoreUnavailableError``."""

    async def append(self, log: str, page: Page, most_entries: int) -> bool:
        """Appends a page; False if this writer's page was applied before.

        About the newest ``most_entries`` are kept, and for ``KEEP_S`` after the last one.
        """
        ...

    async def entries(self, log: str, after: str, most: int) -> tuple[tuple[str, str], ...]:
        """(place, text) of at most ``most`` entries behind a place ("" = the oldest), in order."""
        ...


class PlannerStore(StatsStore, ValueStore, LogStore, Protocol):
    """All that a planner keeps outside itself."""
