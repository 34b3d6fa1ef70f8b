"""One router's share of the news, bounded: a router that stops reading is cut off, not buffered."""

import asyncio

from outrider.worker.v1 import worker_pb2 as wire

_MAX_ROUNDS = 2048


class Outbox:
    """Messages for one Attach stream. All calls are made on the event loop."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[wire.AttachResponse] = asyncio.Queue(_MAX_ROUNDS)
        self.overflowed = False

    def put(self, message: wire.AttachResponse) -> None:
        """Add a message; when the router is too far behind, mark the stream for its end."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.overflowed = True

    async def get(self, wait_s: float) -> wire.AttachResponse | None:
        """The next message, or None when none came within `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._queue.get()
        except TimeoutError:
            return None
