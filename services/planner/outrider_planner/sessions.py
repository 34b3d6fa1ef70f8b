"""Streams of workers as the service sees them: the newest plan to send, and when to end.

Knows that only the latest plan matters to a slow reader. Does not know gRPC.
"""

from __future__ import annotations

import asyncio

from outrider_planner.core.types import Plan


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
