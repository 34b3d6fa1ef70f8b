"""Streams of workers as the service sees them: the newest plan to send, and when to end.

Knows that only the latest plan matters to a slow reader, and how often a younger stream may take
over from a living one. Does not know gRPC.
"""

from __future__ import annotations

import asyncio

from outrider_planner.core.hellos import NameTakenError
from outrider_planner.core.types import Plan

# A worker whose connection broke may be back before its older stream is known to be dead.
MOST_TAKEOVERS = 5
TAKEOVER_EVERY_S = 10.0


class Session:
    """One worker's open stream."""

    def __init__(self, incarnation: str, stream: int) -> None:
        self.incarnation = incarnation
        self.stream = stream
        self.ended: str | None = None
        self._plan: Plan | None = None
        self._news = asyncio.Event()

    def offer(self, plan: Plan) -> None:
        """Replaces a plan that was not sent yet."""
        self._plan = plan
        self._news.set()

    def end(self, reason: str) -> None:
        """Asks the stream to close, saying why."""
        self.ended = reason
        self._news.set()

    async def take(self, limit_s: float) -> Plan | None:
        """The newest unsent plan, or None after the limit or once the session ended."""
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            return None
        self._news.clear()
        plan, self._plan = self._plan, None
        return plan


class Takeovers:
    """Two workers with one incarnation would end each other's stream for ever: here they do not.

    ``MOST_TAKEOVERS`` at once, then one every ``TAKEOVER_EVERY_S``; whoever comes more often waits
    until the older stream has ended.
    """

    def __init__(self) -> None:
        # When all takeovers of a worker so far will have been paid off.
        self._paid_s: dict[str, float] = {}

    def count(self, incarnation: str, now_s: float) -> None:
        """Counts one, and forgets workers without debts.

        Raises:
            NameTakenError: too many within too little time.
        """
        self._paid_s = {name: paid_s for name, paid_s in self._paid_s.items() if paid_s > now_s}
        paid_s = max(self._paid_s.get(incarnation, now_s), now_s) + TAKEOVER_EVERY_S
        if paid_s - now_s > MOST_TAKEOVERS * TAKEOVER_EVERY_S:
            raise NameTakenError(
                f"another worker keeps a stream open as {incarnation!r}; "
                "an incarnation must be random for every start of a process"
            )
        self._paid_s[incarnation] = paid_s
