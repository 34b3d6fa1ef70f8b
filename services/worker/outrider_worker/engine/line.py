"""The waiting line: in which order requests are let in. Pure Python over request records.

Those that were sent back come first, oldest first: they have begun, and somebody reads them. Of the
others a lower priority goes first, and among equals who came first. Each can be overtaken only so
often: a stream of urgent requests delays the rest and starves nobody.

Knows: order. Does not know: room, seats, who fits.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider_worker.engine.types import Request

MAX_OVERTAKEN = 256
"""Times that later requests go before one that waits: as many as a line holds by default."""


@dataclass(slots=True)
class _Place:
    request: Request
    overtaken: int = 0

    def gives_way_to(self, other: Request) -> bool:
        urgent = other.spec.priority < self.request.spec.priority
        return urgent and self.overtaken < MAX_OVERTAKEN


class WaitingLine:
    """All who wait, next one first."""

    def __init__(self, age_of: Callable[[Request], int]) -> None:
        self._age_of = age_of
        self._sent_back: list[Request] = []
        self._places: list[_Place] = []

    def __iter__(self) -> Iterator[Request]:
        yield from self._sent_back
        yield from (place.request for place in self._places)

    def __len__(self) -> int:
        return len(self._sent_back) + len(self._places)

    def join(self, request: Request) -> None:
        """At the end, or before those it may overtake."""
        index = len(self._places)
        while index and self._places[index - 1].gives_way_to(request):
            index -= 1
            self._places[index].overtaken += 1
        self._places.insert(index, _Place(request))

    def send_back(self, request: Request) -> None:
        """One that had entered: before all who have not."""
        insort(self._sent_back, request, key=self._age_of)

    def leave(self, requests: Sequence[Request]) -> None:
        """Take these out."""
        gone = set(requests)
        self._sent_back = [request for request in self._sent_back if request not in gone]
        self._places = [place for place in self._places if place.request not in gone]
