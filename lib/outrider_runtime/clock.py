"""Time as an argument: the clock seam and its two implementations.

Domain code never reads the time itself. Durations and deadlines come from `monotonic_s`; `wall_s`
is only for what people read.
"""

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """Where a process takes its time from."""

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed on this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that stands still until `advance` moves it and wakes the sleepers in order."""

    def __init__(self, start_s: float = 0.0, wall_offset_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_offset_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    def step_wall(self, seconds: float) -> None:
        """Move only the wall clock, forwards or back, as an operator or NTP would."""
        self._wall_offset_s += seconds

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._now_s + max(seconds, 0.0), self._order, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move time on by `seconds`, waking each sleeper at its own moment."""
        end_s = self._now_s + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, future = heapq.heappop(self._sleepers)
            self._now_s = max(self._now_s, due_s)
            if not future.done():
                future.set_result(None)
            await _settle()
        self._now_s = end_s


async def _settle(turns: int = 10) -> None:
    """Let tasks that became ready run until they wait again."""
    for _ in range(turns):
        await asyncio.sleep(0)
