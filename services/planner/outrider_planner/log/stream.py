"""A decision log in the store: one stream for all planners of it, bounded by its length.

Knows its name and when a reader who comes late needs a new beginning. The store's link sends what
is put here, exactly once, and drops the oldest while the store is away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from outrider_planner.store.base import LogStore

LOG_NAME = "decisions"
# The stream forgets its oldest entries: whatever is left holds a beginning not far from its own.
HEAD_EVERY_ENTRIES = 10_000
_PAGE_ENTRIES = 256


class StreamSink:
    """Hands lines on; ``append(name, line)`` never waits, ``dropped()`` counts what it gave up."""

    def __init__(self, append: Callable[[str, str], None], dropped: Callable[[], int]) -> None:
        self._append = append
        self._dropped = dropped
        self._since_head = 0

    async def write(self, lines: Sequence[str]) -> bool:
        """True where so many lines went by that a new beginning is due."""
        for line in lines:
            self._append(LOG_NAME, line)
        self._since_head += len(lines)
        due = self._since_head >= HEAD_EVERY_ENTRIES
        if due:
            self._since_head = 0
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
