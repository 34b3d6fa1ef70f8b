"""The embedded store of a one-machine run: what Redis would do, in dictionaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count, islice

from outrider_planner.core.sums import BUCKET_S, MOST_BUCKETS, merge
from outrider_planner.store.base import KEEP_S, Batch, Page, Value


@dataclass(slots=True)
class _Scope:
    buckets: dict[int, dict[str, int]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Log:
    entries: deque[tuple[int, str]] = field(default_factory=deque)
    last: dict[str, int] = field(default_factory=dict)
    places: count[int] = field(default_factory=lambda: count(1))


class MemoryStore:
    """Sums, values and logs of this process, for as long as it lives.

    ``now_s`` is any clock; it may step back or ahead without harm.
    """

    def __init__(
        self, now_s: Callable[[], float], bucket_s: float = BUCKET_S, keep_s: float = KEEP_S
    ) -> None:
        self._now_s = now_s
        self._bucket_s = bucket_s
        self._kept_buckets = int(keep_s / bucket_s)
        self._scopes: dict[str, _Scope] = {}
        self._values: dict[str, Value] = {}
        self._logs: dict[str, _Log] = {}

    async def ping(self) -> None:
        """Always there."""

    async def add(self, scope: str, batch: Batch) -> bool:
        """Adds a batch unless its sequence was seen."""
        kept = self._scopes.setdefault(scope, _Scope())
        if batch.sequence <= kept.last.get(batch.writer, 0):
            return False
        bucket = max(int(self._now_s() // self._bucket_s), *kept.buckets, 0)
        merge(kept.buckets.setdefault(bucket, {}), batch.fields)
        kept.last[batch.writer] = batch.sequence
        for old in sorted(kept.buckets)[: -self._kept_buckets]:
            del kept.buckets[old]
        return True

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """Copies, newest first."""
        kept = self._scopes.get(scope, _Scope())
        newest = sorted(kept.buckets, reverse=True)[:MOST_BUCKETS]
        return tuple(dict(kept.buckets[bucket]) for bucket in newest)

    async def keep(self, key: str, value: Value, keep_s: float | None) -> Value:
        """Keeps the newer one; how long does not matter to a process."""
        present = self._values.get(key)
        if present is None or value.version > present.version:
            self._values[key] = value
        return self._values[key]

    async def kept(self, key: str) -> Value | None:
        """The value as it was kept."""
        return self._values.get(key)

    async def append(self, log: str, page: Page, most_entries: int) -> bool:
        """Appends a page unless its sequence was seen."""
        kept = self._logs.setdefault(log, _Log())
        if page.sequence <= kept.last.get(page.writer, 0):
            return False
        kept.last[page.writer] = page.sequence
        kept.entries.extend((next(kept.places), text) for text in page.entries)
        while len(kept.entries) > most_entries:
            kept.entries.popleft()
        return True

    async def entries(self, log: str, after: str, most: int) -> tuple[tuple[str, str], ...]:
        """Places are numbers from 1."""
        behind = int(after or 0)
        found = (item for item in self._logs.get(log, _Log()).entries if item[0] > behind)
        return tuple((str(place), text) for place, text in islice(found, most))

    def forget(self, scope: str) -> None:
        """Nothing is held beside the sums themselves."""

    async def close(self) -> None:
        """Nothing to end."""
