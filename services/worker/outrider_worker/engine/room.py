"""Room for one round: who gets slots for how many drafts, and who has to give way.

Knows running requests and the page account; who leaves is sent off by the scheduler. The order in
which room is made: what is reserved for drafts that are not under way, then the youngest request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.types import Request


@dataclass(frozen=True, slots=True)
class RoundRoom:
    """Who goes into a round: `granted` drafts for each of `requests`, oldest first.

    preempted: who had to leave for it; they wait again, in a new epoch.
    """

    requests: list[Request]
    granted: list[int]
    preempted: list[Request]


class RoomMaker:
    """Reserves slots round by round and makes room where there is none."""

    def __init__(
        self, pages: PageAccount, running: Sequence[Request], preempt: Callable[[Request], None]
    ) -> None:
        """`running`: the live list, oldest first; `preempt` takes a request out of it."""
        self._pages = pages
        self._running = running
        self._preempt = preempt

    def reserve(self, requests: Sequence[Request], drafts: Sequence[int]) -> RoundRoom:
        """Reserve a round's slots: first everyone's anchor, then drafts, oldest first.

        For an anchor younger requests may have to go, for drafts nobody has to.
        """
        preempted: list[Request] = []
        for request in requests:
            if request not in preempted:
                preempted += self._secure_anchor(request)
        staying = [
            (request, wanted)
            for request, wanted in zip(requests, drafts, strict=True)
            if request not in preempted
        ]
        granted = [self._grant(request, wanted) for request, wanted in staying]
        return RoundRoom([request for request, _ in staying], granted, preempted)

    def scratch(self, request: Request, wanted: int) -> int:
        """Slots from the next anchor's on that a drafter may write: `wanted`, or as many as the
        request's last page has. They cost nobody a place, and may be taken back after the launch.
        """
        anchor = request.committed + request.ahead
        if self._pages.try_reserve(request, anchor, wanted):
            return wanted
        return min(wanted, max(0, len(request.pages) * self._pages.page_tokens - anchor))

    def _secure_anchor(self, request: Request) -> list[Request]:
        """Reserve the slot of the next anchor; returns whom it cost their place.

        The youngest of all may be the request itself: it never drives out an older one.
        """
        if self._reserve_after_trimming(request, bare_slots(request)):
            return []
        preempted: list[Request] = []
        while request not in preempted and not self._pages.try_reserve(
            request, bare_slots(request)
        ):
            youngest = self._running[-1]
            self._preempt(youngest)
            preempted.append(youngest)
        return preempted

    def _reserve_after_trimming(self, request: Request, slots: int) -> bool:
        """Reserve slots, taking back room for drafts as far as needed, the youngest's first."""
        if self._pages.try_reserve(request, slots):
            return True
        for other in reversed(self._running):
            self._pages.trim(other, bare_slots(other))
            if self._pages.try_reserve(request, slots):
                return True
        return False

    def _grant(self, request: Request, wanted: int) -> int:
        """Reserve slots for drafts: all that are wanted, or those that fit into its last page."""
        bare = bare_slots(request)
        if self._pages.try_reserve(request, bare + wanted):
            return wanted
        self._pages.try_reserve(request, len(request.pages) * self._pages.page_tokens)
        return max(0, min(wanted, request.reserved - bare))


def bare_slots(request: Request) -> int:
    """Slots without any draft: known tokens, rounds in flight at their longest, next anchor."""
    return max(len(request.token_ids), request.committed + request.ahead + 1)
