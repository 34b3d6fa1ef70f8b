"""What there is to do at the store, by name: sums to add and read, values, and logs.

Knows one turn of each and what remains when a turn fails. Does not know when turns happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Protocol

from outrider_planner.store.base import LogLimits, LogStore, StatsStore, Value, ValueStore
from outrider_planner.store.outbox import Keeping, LogBox, Outbox, ValueBox

Buckets = tuple[Mapping[str, int], ...]


class Outcome(Enum):
    """How a batch, or a read, ended; the values are those of the metrics."""

    APPLIED = "applied"
    KNOWN = "known"
    READ = "read"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    FAILED = "failed"


OnOutcome = Callable[[Outcome], None]


class Errands(Protocol):
    """One kind of work; ``run`` raises what the store raises, and then nothing is done with."""

    def names(self) -> Iterable[str]:
        """What has something to do."""
        ...

    async def run(self, name: str) -> None:
        """One turn."""
        ...


class SumsErrands:
    """By scope: the unanswered batch first, then what gathered behind it, then the read."""

    def __init__(
        self,
        store: StatsStore,
        writer: str,
        on_buckets: Callable[[str, Buckets], None],
        on_outcome: OnOutcome,
    ) -> None:
        self.outbox = Outbox(writer)
        self.wanted: set[str] = set()
        self._store = store
        self._on_buckets = on_buckets
        self._on_outcome = on_outcome

    def names(self) -> set[str]:
        """Scopes."""
        return {*self.outbox.scopes(), *self.wanted}

    async def run(self, name: str) -> None:
        """Sends and reads one scope."""
        while batch := self.outbox.batch(name):
            applied = await self._store.add(name, batch)
            self.outbox.acknowledge(name, batch)
            self._on_outcome(Outcome.APPLIED if applied else Outcome.KNOWN)
        if name in self.wanted:
            buckets = await self._store.buckets(name)
            self.wanted.discard(name)
            self._on_buckets(name, buckets)
            self._on_outcome(Outcome.READ)


class ValueErrands:
    """By key: what is to be kept, or read."""

    def __init__(
        self,
        store: ValueStore,
        on_value: Callable[[str, Value | None], None],
        on_outcome: OnOutcome,
    ) -> None:
        self.box = ValueBox()
        self._store = store
        self._on_value = on_value
        self._on_outcome = on_outcome

    def names(self) -> list[str]:
        """Keys."""
        return self.box.keys()

    async def run(self, name: str) -> None:
        """Keeps or reads one key; either way what is there now is told."""
        keeping = self.box.next(name)
        found = await self._now(name, keeping)
        self.box.done(name, keeping)
        self._on_value(name, found)
        self._on_outcome(Outcome.READ if keeping is None else Outcome.APPLIED)

    async def _now(self, name: str, keeping: Keeping | None) -> Value | None:
        if keeping is None:
            return await self._store.kept(name)
        return await self._store.keep(name, keeping.value, keeping.keep_s)


class LogErrands:
    """By log: pages in order."""

    def __init__(self, store: LogStore, writer: str, on_outcome: OnOutcome) -> None:
        self._store = store
        self._writer = writer
        self._boxes: dict[str, LogBox] = {}
        self._limits: dict[str, LogLimits] = {}
        self._on_outcome = on_outcome

    @property
    def dropped(self) -> int:
        """Entries that found no room while the store was away."""
        return sum(box.dropped for box in self._boxes.values())

    def put(self, log: str, entry: str, limits: LogLimits) -> None:
        """Adds an entry to what will be appended; of the whole log so much is kept from now on."""
        self._limits[log] = limits
        self._boxes.setdefault(log, LogBox(self._writer)).put(entry)

    def names(self) -> list[str]:
        """Logs."""
        return [name for name, box in self._boxes.items() if box.page()]

    async def run(self, name: str) -> None:
        """Appends all pages of one log."""
        box = self._boxes[name]
        while page := box.page():
            kept = self._limits[name].entries(box.mean_characters)
            applied = await self._store.append(name, page, kept)
            box.acknowledge(page)
            self._on_outcome(Outcome.APPLIED if applied else Outcome.KNOWN)
