"""What waits to be stored: one frozen batch per scope in flight, new sums behind it.

Knows the sender's half of exactly-once: a batch keeps its content and sequence until it is
acknowledged. Pure bookkeeping, bounded: sums of the same field add up, values replace older ones,
and of a log the oldest entries are dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_planner.core.sums import merge
from outrider_planner.store.base import Batch, Page, Value

MOST_LOG_ENTRIES = 4096
MOST_LOG_CHARACTERS = 8 << 20
_MOST_PAGE_ENTRIES = 256
_MOST_PAGE_CHARACTERS = 1 << 20
# The size of an entry is a mean over about so many.
_MEAN_ENTRIES = 1000


@dataclass(slots=True)
class _Lane:
    waiting: dict[str, int] = field(default_factory=dict)
    sent: Batch | None = None


class Outbox:
    """Batches of one writer incarnation; they are numbered over all scopes."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self._sequence = 0
        self._lanes: dict[str, _Lane] = {}

    def put(self, scope: str, fields: Mapping[str, int]) -> None:
        """Adds sums behind whatever is in flight."""
        if fields:
            merge(self._lanes.setdefault(scope, _Lane()).waiting, fields)

    def scopes(self) -> list[str]:
        """Scopes with something to send."""
        return list(self._lanes)

    def batch(self, scope: str) -> Batch | None:
        """The batch to send: the unanswered one, unchanged, or a new one."""
        lane = self._lanes.get(scope)
        if lane is None:
            return None
        if lane.sent is None and lane.waiting:
            self._sequence += 1
            lane.sent = Batch(self._writer, self._sequence, dict(lane.waiting))
            lane.waiting = {}
        return lane.sent

    def acknowledge(self, scope: str, batch: Batch) -> None:
        """The store answered for this batch, whether it was new to it or not."""
        lane = self._lanes.get(scope)
        if lane is not None and lane.sent is batch:
            lane.sent = None
            if not lane.waiting:
                del self._lanes[scope]


@dataclass(frozen=True, slots=True)
class Keeping:
    """A value on its way: see ``ValueStore.keep``."""

    value: Value
    keep_s: float | None


class ValueBox:
    """Values to keep and keys to read, by key; of two values the newer one is sent."""

    def __init__(self) -> None:
        self._waiting: dict[str, Keeping | None] = {}

    def keep(self, key: str, keeping: Keeping) -> None:
        """Asks for a value to be kept."""
        before = self._waiting.get(key)
        if before is None or before.value.version <= keeping.value.version:
            self._waiting[key] = keeping

    def ask(self, key: str) -> None:
        """Asks for a key to be read; keeping reads as well."""
        self._waiting.setdefault(key, None)

    def keys(self) -> list[str]:
        """Keys with something to do."""
        return list(self._waiting)

    def next(self, key: str) -> Keeping | None:
        """What to keep, or None to read only."""
        return self._waiting[key]

    def done(self, key: str, keeping: Keeping | None) -> None:
        """The store answered; a value that came meanwhile still waits."""
        if self._waiting.get(key) is keeping:
            self._waiting.pop(key, None)


class LogBox:
    """Pages of one log and one writer incarnation; entries are ASCII, a byte a character."""

    def __init__(self, writer: str) -> None:
        self.dropped = 0
        self.mean_characters = 0.0
        self._entries = 0
        self._writer = writer
        self._waiting: deque[str] = deque()
        self._characters = 0
        self._sent: Page | None = None
        self._sequence = 0

    def put(self, entry: str) -> None:
        """Adds an entry; where too much waits, the oldest ones go."""
        self._waiting.append(entry)
        self._characters += len(entry)
        self._entries = min(self._entries + 1, _MEAN_ENTRIES)
        self.mean_characters += (len(entry) - self.mean_characters) / self._entries
        while len(self._waiting) > MOST_LOG_ENTRIES or self._characters > MOST_LOG_CHARACTERS:
            self._take()
            self.dropped += 1

    def page(self) -> Page | None:
        """The page to send: the unanswered one, unchanged, or a new one."""
        if self._sent is None and self._waiting:
            entries = [self._take()]
            room = _MOST_PAGE_CHARACTERS - len(entries[0])
            while self._waiting and len(entries) < _MOST_PAGE_ENTRIES:
                room -= len(self._waiting[0])
                if room < 0:
                    break
                entries.append(self._take())
            self._sequence += 1
            self._sent = Page(self._writer, self._sequence, tuple(entries))
        return self._sent

    def acknowledge(self, page: Page) -> None:
        """The store answered for this page."""
        if self._sent is page:
            self._sent = None

    def _take(self) -> str:
        entry = self._waiting.popleft()
        self._characters -= len(entry)
        return entry
