"""From the event loop to where a log is kept: a bounded queue, and a task that empties it.

Knows how much may wait. Encoding and writing happen in a thread, so that a slow disk or a large
report delays no stream. Entries that found no room are counted, and a gap tells replay of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from outrider_planner.log.entries import Entry, encode
from outrider_runtime.logs import get_logger
from outrider_runtime.supervision import keep_going

MOST_WAITING_ROUNDS = 200_000
MOST_ENTRY_BYTES = 1 << 20
_WRITE_EVERY_S = 0.25
_MOST_AT_ONCE = 512
_GAP = "gap"
log = get_logger(__name__)


class Sink(Protocol):
    """Where lines go."""

    async def write(self, lines: Sequence[str]) -> bool:
        """Keeps lines, in order; True where a new piece begins and wants its head.

        Raises:
            OSError: nothing of it may be relied on; the lines count as lost.
        """
        ...

    def lost(self) -> int:
        """Lines that were taken and could not be kept after all, since the start."""
        ...

    async def close(self) -> None:
        """Nothing is written any more."""
        ...


class LogJournal:
    """Entries of one planner incarnation. ``put`` is for the event loop's thread only."""

    def __init__(self, sink: Sink, writer: str) -> None:
        self.written = 0
        self.lost = 0
        self._sink = sink
        self._writer = writer
        self._waiting: deque[Entry] = deque()
        self._rounds = 0
        self._unmarked = 0
        self._sink_lost = 0
        self._head_wanted = True
        self._troubled = False
        self._task: asyncio.Task[None] | None = None

    def put(self, entry: Entry) -> None:
        """Takes an entry, or counts it as lost where too much waits already."""
        if self._rounds + entry.weight > MOST_WAITING_ROUNDS:
            self._lose(1)
            return
        if self._unmarked:
            self._waiting.append(Entry(_GAP, entry.time_s, {"lost": self._unmarked}))
            self._unmarked = 0
        self._waiting.append(entry)
        self._rounds += entry.weight

    def wants_head(self) -> bool:
        """True once at the start and after every new piece."""
        wanted, self._head_wanted = self._head_wanted, False
        return wanted

    def start(self) -> None:
        """Begins to write."""
        self._task = keep_going("decision log", self._run)

    async def stop(self) -> None:
        """Writes what waits, once, and closes the sink."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()
        await self._sink.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            await asyncio.shield(self._write())

    async def _write(self) -> None:
        while self._waiting:
            entries = self._taken()
            lines = await asyncio.to_thread(_encoded, entries, self._writer)
            self._lose(len(entries) - len(lines))
            try:
                self._head_wanted |= await self._sink.write(lines)
            except OSError as error:
                self._lose(len(lines))
                self._warn(error)
                return
            self.written += len(lines)
            self._troubled = False
            self._lose(self._sink.lost() - self._sink_lost)
            self._sink_lost = self._sink.lost()

    def _taken(self) -> list[Entry]:
        entries = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_AT_ONCE))]
        self._rounds -= sum(entry.weight for entry in entries if entry.kind != _GAP)
        return entries

    def _lose(self, entries: int) -> None:
        self.lost += entries
        self._unmarked += entries

    def _warn(self, error: OSError) -> None:
        if not self._troubled:
            log.warning("decision_log_not_written", reason=str(error))
        self._troubled = True


def _encoded(entries: Sequence[Entry], writer: str) -> list[str]:
    lines = (encode(entry, writer) for entry in entries)
    return [line for line in lines if len(line) <= MOST_ENTRY_BYTES]
