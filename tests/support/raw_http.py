"""Connections byte by byte: a small application behind the library's server, and its clients.

Time is the test's: a busy machine makes nobody late, and none is waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from outrider_runtime.http import listen, quiet_server
from tests.support.net import LOOPBACK

GET = b"GET / HTTP/1.1\r\nhost: a\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
_REAL_LIMIT_S = 30
Sent = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Application:
    """Answers `hello`, at once or once the body was read, and keeps what it saw.

    Args:
        reads: whether it reads bodies.
        answer: what it says.
        last: what must be set before it says more than the first byte; nothing if None.
    """

    def __init__(
        self, reads: bool = True, answer: bytes = b"hello", last: asyncio.Event | None = None
    ) -> None:
        self.reads = reads
        self.answer = answer
        self.last = last
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if self.reads:
            self.bodies.append(await _body(receive))
        size = str(len(self.answer)).encode()
        start = {"type": "http.response.start", "headers": [(b"content-length", size)]}
        await send({**start, "status": 200})
        rest, part = self.answer, {"type": "http.response.body"}
        if self.last is not None:
            await send({**part, "body": rest[:1], "more_body": True})
            await self.last.wait()
            rest = rest[1:]
        await send({**part, "body": rest})


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


@dataclass
class Served:
    """An application that is served."""

    port: int
    _server: uvicorn.Server

    def left_bytes(self) -> int:
        """What clients have not taken of their answers, without what the kernel keeps."""
        connections = self._server.server_state.connections
        return sum(one.transport.get_write_buffer_size() for one in connections)

    def open(self) -> int:
        """Connections that the server keeps."""
        return len(self._server.server_state.connections)


@asynccontextmanager
async def served(app: Application, **limits: Any) -> AsyncIterator[Served]:
    """Serve the application."""
    listener = listen(LOOPBACK, 0, send_buffer_bytes=4096)
    server = quiet_server(app, lifespan="off", timeout_graceful_shutdown=1, **limits)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield Served(listener.getsockname()[1], server)
    finally:
        server.should_exit = True
        await serving


async def connected(port: int, first: bytes = b"") -> Sent:
    """A connection that the server has accepted, with the first that is sent on it."""
    sent = await asyncio.open_connection(LOOPBACK, port)
    await write(sent, first)
    return sent


async def write(sent: Sent, *pieces: bytes) -> None:
    """Send what the server reads piece by piece."""
    for piece in pieces:
        sent[1].write(piece)
        await arrived()


async def answered(sent: Sent) -> None:
    """Read one answer of `hello`."""
    await sent[0].readuntil(b"\r\n\r\n")
    assert await sent[0].readexactly(5) == b"hello"


async def arrived() -> None:
    """What was sent by loopback is read by the other side, which shares this loop."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what time alone does not bring: turns of the loop, for half a minute at most."""
    for _ in range(_REAL_LIMIT_S * 1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come")


class LoopTime:
    """The event loop's time, which passes when a test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real_s = loop.time
        self._ahead_s = 0.0
        loop.time = self._time_s  # type: ignore[method-assign]

    def _time_s(self) -> float:
        return self._real_s() + self._ahead_s

    async def pass_s(self, duration_s: float) -> None:
        """Let time pass for everything that has arrived, and what was waiting go on."""
        await arrived()
        self._ahead_s += duration_s
        await arrived()
