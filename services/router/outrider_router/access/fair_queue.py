"""A waiting line in which no key pushes the others back. Pure.

Start-time fair queueing (Goyal, Vin, Cheng 1996) between keys: the first entry of each key has a
start tag, the later of the line's virtual time and the finish of the key's last entry that was let
in; that one's finish was its start plus cost over weight. The smallest start tag is next. A key
that asks for much waits behind itself, and no weight starves. Among a key's own entries priority
decides, lower first, then the order in which they came.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Claim:
    """What is asked for.

    Attributes:
        key: whose it is.
        weight: the key's share of what becomes free.
        places: how many it takes.
        priority: among the key's own, lower first.
    """

    key: str
    weight: float
    places: int
    priority: int = 0


@dataclass(order=True)
class Entry(Generic[Item]):
    """One that waits."""

    priority: int
    number: int
    claim: Claim = field(compare=False)
    item: Item = field(compare=False)


@dataclass
class _Flow(Generic[Item]):
    """One key's entries, as a heap, and the start tag of the first of them."""

    start: float
    entries: list[Entry[Item]] = field(default_factory=list)

    @property
    def rank(self) -> tuple[float, int]:
        """Smallest is next; of equal tags the one that came first."""
        return self.start, self.entries[0].number


class FairQueue(Generic[Item]):
    """At most `most` entries; where it is `divided`, one key gets at most half of what is free."""

    def __init__(self, most: int, divided: bool = True) -> None:
        self._most = most
        self._divided = divided
        self._flows: dict[str, _Flow[Item]] = {}
        self._finish: dict[str, float] = {}
        self._virtual = 0.0
        self._number = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def has_room(self, key: str) -> bool:
        """Whether the key may add one: the more is taken, the less it may have of the rest."""
        flow = self._flows.get(key)
        own = len(flow.entries) if flow and self._divided else 0
        return own < self._most - self._waiting

    def push(self, claim: Claim, item: Item) -> Entry[Item]:
        """Add an entry; what it returns removes it again."""
        flow = self._flows.get(claim.key)
        if flow is None:
            start = max(self._virtual, self._finish.get(claim.key, 0.0))
            flow = self._flows[claim.key] = _Flow(start)
        self._number += 1
        entry = Entry(claim.priority, self._number, claim, item)
        heappush(flow.entries, entry)
        self._waiting += 1
        return entry

    def peek(self) -> Entry[Item] | None:
        """The next one."""
        return self._next_flow().entries[0] if self._flows else None

    def pop(self) -> Item:
        """Take the next one out; the line must not be empty."""
        flow = self._next_flow()
        entry = heappop(flow.entries)
        self._virtual = flow.start
        flow.start += entry.claim.places / entry.claim.weight
        self._finish[entry.claim.key] = flow.start
        self._left(entry.claim.key)
        return entry.item

    def remove(self, entry: Entry[Item]) -> None:
        """Take one out that waits no longer, as if it had never come; nothing for one that is out.

        Its key pays for what is let in, not for what gave up.
        """
        flow = self._flows.get(entry.claim.key)
        if flow is not None and entry in flow.entries:
            flow.entries.remove(entry)
            heapify(flow.entries)
            self._left(entry.claim.key)

    def drain(self) -> Iterator[Item]:
        """Take all out."""
        while self._flows:
            yield self.pop()

    def _next_flow(self) -> _Flow[Item]:
        return min(self._flows.values(), key=lambda flow: flow.rank)

    def _left(self, key: str) -> None:
        self._waiting -= 1
        if not self._flows[key].entries:
            del self._flows[key]
        if not self._flows:
            # An empty line remembers nobody.
            self._finish.clear()
            self._virtual = 0.0
