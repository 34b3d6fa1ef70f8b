"""Writing events to a client while it listens and reads."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider_router.metrics import RequestRecord
from outrider_router.openai.events import PING
from outrider_router.openai.transport import ClientGone, until_disconnect

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Proxies that buffer would deliver the whole stream at its end.
    "x-accel-buffering": "no",
}


@dataclass(frozen=True)
class StreamLimits:
    """write_s: time that the client may take to accept one piece. ping_s: silence that is broken
    by a comment.
    """

    write_s: float
    ping_s: float


class EventStream(Response):
    """Writes events until they end, the client goes, or it stops reading.

    Args:
        events: the events, encoded; several may come in one piece.
        resources: released when the stream ends, however it ends.
        record: the request's record; `events` gives it its outcome unless the client goes.
        limits: of time.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        resources: AsyncExitStack,
        record: RequestRecord,
        limits: StreamLimits,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._resources = resources
        self._record = record
        self._limits = limits
        self._writing_since_s: float | None = None
        self._last_sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            try:
                await until_disconnect(receive, self._write(send))
            except (ClientGone, TimeoutError, OSError):
                self._record.end("cancelled")
            finally:
                # Whatever else went wrong: every request has an outcome.
                self._record.end("error")

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with asyncio.timeout(None) as patience:
            watch = asyncio.create_task(self._watch(send, patience))
            try:
                await self._send(send, start)
                async with aclosing(self._events) as events:
                    async for piece in events:
                        await self._send(send, _body(piece, more=True))
                await self._send(send, _body(b"", more=False))
            finally:
                watch.cancel()

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        time_s = asyncio.get_running_loop().time
        self._writing_since_s = time_s()
        await send(message)
        self._writing_since_s = None
        self._last_sent_s = time_s()

    async def _watch(self, send: Send, patience: asyncio.Timeout) -> None:
        """Break silences, so that nobody on the way takes the stream for dead, and end the stream
        once a piece is not taken. One watch beside all pieces: a timer for each would cost more
        than writing it.
        """
        time_s, write_s = asyncio.get_running_loop().time, self._limits.write_s
        while True:
            since_s, now_s = self._writing_since_s, time_s()
            if since_s is None:
                due_s = self._last_sent_s + self._limits.ping_s
                if due_s <= now_s:
                    await self._ping(send, patience)
                    continue
            else:
                due_s = since_s + write_s
                if due_s <= now_s:
                    patience.reschedule(now_s)
                    return
            # A piece that is not taken may have been sent meanwhile.
            await asyncio.sleep(min(due_s - now_s, write_s / 4))

    async def _ping(self, send: Send, patience: asyncio.Timeout) -> None:
        try:
            async with asyncio.timeout(self._limits.write_s):
                await send(_body(PING, more=True))
        except TimeoutError:
            patience.reschedule(0)
        self._last_sent_s = asyncio.get_running_loop().time()


def _body(piece: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}
