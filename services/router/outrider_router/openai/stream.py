"""Server-sent events: one `data:` line each, written while the client listens."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider_router.metrics import RequestRecord
from outrider_router.openai.transport import ClientGone, until_disconnect

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Proxies that buffer would deliver the whole stream at its end.
    "x-accel-buffering": "no",
}


def event(value: Mapping[str, Any]) -> bytes:
    """One event."""
    return (
        b"data: "
        + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        + (b"\n\n")
    )


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
        self._sending = asyncio.Lock()
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
        await self._within_limit(send, start)
        pings = asyncio.create_task(self._ping(send))
        try:
            async with aclosing(self._events) as events:
                async for piece in events:
                    await self._within_limit(send, _body(piece, more=True))
        finally:
            pings.cancel()
        await self._within_limit(send, _body(b"", more=False))

    async def _within_limit(self, send: Send, message: dict[str, Any]) -> None:
        async with self._sending, asyncio.timeout(self._limits.write_s):
            await send(message)
        self._last_sent_s = asyncio.get_running_loop().time()

    async def _ping(self, send: Send) -> None:
        """Break silences, so that nobody on the way takes the stream for dead."""
        loop = asyncio.get_running_loop()
        while True:
            silent_s = loop.time() - self._last_sent_s
            if silent_s >= self._limits.ping_s:
                await self._within_limit(send, _body(PING, more=True))
                silent_s = 0.0
            await asyncio.sleep(self._limits.ping_s - silent_s)


def _body(piece: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}
