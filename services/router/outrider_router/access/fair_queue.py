"""A waiting line in which no key pushes the others back. Pure.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each entry gets a start tag, the later of the
line's virtual time and its key's last finish; its finish is the start plus cost over weight. The
smallest start tag is next. A key that asks for much waits behind itself, and no weight starves.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(order=True)
class Entry(Generic[Item]):
    """One that waits; `gone` once it is out of the line."""

    start: float
    number: int
    key: str = field(compare=False)
    cost: int = field(compare=False)
    item: Item = field(compare=False)
    gone: bool = field(compare=False, default=False)


class FairQueue(Generic[Item]):
    """At most `most` entries, of which one key gets at most half of what is free."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[Entry[Item]] = []
        self._finish: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._virtual = 0.0
        self._number = 0

    def __len__(self) -> int:
        return self._waiting.total()

    def has_room(self, key: str) -> bool:
        """Whether the key may add one: the more is taken, the less it may have of the rest."""
        return self._waiting[key] < self._most - len(self)

    def push(self, key: str, weight: float, cost: int, item: Item) -> Entry[Item]:
        """Add an entry; what it returns removes it again."""
        start = max(self._virtual, self._finish.get(key, 0.0))
        self._finish[key] = start + cost / weight
        self._number += 1
        entry = Entry(start, self._number, key, cost, item)
        heapq.heappush(self._heap, entry)
        self._waiting[key] += 1
        return entry

    def peek(self) -> tuple[int, Item] | None:
        """Cost and item of the next one."""
        self._skip_gone()
        return (self._heap[0].cost, self._heap[0].item) if self._heap else None

    def pop(self) -> Item:
        """Take the next one out; the line must not be empty."""
        self._skip_gone()
        entry = heapq.heappop(self._heap)
        self._virtual = entry.start
        self._count_out(entry)
        return entry.item

    def remove(self, entry: Entry[Item]) -> None:
        """Take one out that waits no longer; does nothing for one that is out."""
        if not entry.gone:
            self._count_out(entry)

    def drain(self) -> Iterator[Item]:
        """Take all out."""
        while self.peek() is not None:
            yield self.pop()

    def _count_out(self, entry: Entry[Item]) -> None:
        entry.gone = True
        self._waiting[entry.key] -= 1
        if not self._waiting[entry.key]:
            del self._waiting[entry.key]
        if not len(self):
            # An empty line remembers nobody.
            self._finish.clear()
            self._heap.clear()
            self._virtual = 0.0

    def _skip_gone(self) -> None:
        while self._heap and self._heap[0].gone:
            heapq.heappop(self._heap)
