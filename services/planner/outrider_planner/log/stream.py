"""A decision log in the store: one stream for all planners of it, bounded in entries and bytes.

Knows its name and when a reader who comes late needs a new beginning. The store's link sends what
is put here, exactly once, and drops the oldest while the store is away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from outrider_planner.store.base import LogLimits, LogStore

LOG_NAME = "decisions"
# The stream forgets its oldest entries: a beginning is written anew after this part of what is
# kept, so that what is left holds one, also where a few planners share it.
HEAD_EVERY_SHARE = 0.25
_PAGE_ENTRIES = 256


class StreamSink:
    """Hands lines on; ``append(name, line, limits)`` never waits, ``dropped()`` counts what it
    gave up."""

    def __init__(
        self,
        append: Callable[[str, str, LogLimits], None],
        dropped: Callable[[], int],
        limits: LogLimits | None = None,
    ) -> None:
        self._append = append
        self._dropped = dropped
        self._limits = limits or LogLimits()
        self._entries = self._bytes = 0

    async def write(self, lines: Sequence[str]) -> bool:
        """True where so much went by that a new beginning is due."""
        for line in lines:
            self._append(LOG_NAME, line, self._limits)
            self._entries += 1
            self._bytes += len(line)
        due = (
            self._entries >= HEAD_EVERY_SHARE * self._limits.most_entries
            or self._bytes >= HEAD_EVERY_SHARE * self._limits.most_bytes
        )
        if due:
            self._entries = self._bytes = 0
        return due

    def lost(self) -> int:
        """While the store was away for long."""
        return self._dropped()

    async def close(self) -> None:
        """The link sends what is left when it stops."""


async def read_stream(store: LogStore) -> AsyncIterator[str]:
    """The lines of the stream, oldest first. Raises ``StoreUnavailableError``."""
    place = ""
    while page := await store.entries(LOG_NAME, place, _PAGE_ENTRIES):
        for _, line in page:
            yield line
        place = page[-1][0]
