"""A TCP proxy on loopback in front of a server, with the faults that networks have.

Every fault is a field that may be set at any time and holds from then on, for open connections too:
late answers, answers that get lost, half-open connections that say nothing, refused connections.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.support.net import LOOPBACK

_CHUNK_BYTES = 65_536


class FaultProxy:
    """``delay_s``: every answer comes so late. ``drop``: requests arrive, answers get lost.
    ``half_open``: nothing goes either way and nobody is told. ``refuse``: new connections are
    reset. ``readonly``: calls of functions are answered like by a demoted primary.
    ``connections`` were accepted so far.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.drop = self.half_open = self.refuse = self.readonly = False
        self.connections = 0
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def reset(self) -> None:
        """Resets every open connection; both sides see it at once."""
        for writer in list(self._writers):
            _reset(writer)

    def heal(self) -> None:
        """Ends every fault; what is half-open stays dead, as after a partition."""
        if self.half_open:
            self.reset()
        self.delay_s = 0.0
        self.drop = self.half_open = self.refuse = self.readonly = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        self.connections += 1
        try:
            if self.refuse:
                raise ConnectionResetError
            there, back = await asyncio.open_connection(LOOPBACK, self._target_port)
        except OSError:
            _reset(writer)
            return
        self._writers |= {writer, back}
        self._start(self._requests(reader, back, writer))
        self._start(self._answers(there, writer))

    def _start(self, pump: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(pump)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _requests(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, origin: asyncio.StreamWriter
    ) -> None:
        async with _closing(self._writers, sink):
            while data := await source.read(_CHUNK_BYTES):
                if self.half_open:
                    continue
                if self.readonly and b"FCALL" in data:
                    origin.write(b"-READONLY You can't write against a read only replica.\r\n")
                    continue
                sink.write(data)
                await sink.drain()

    async def _answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        async with _closing(self._writers, sink):
            while data := await source.read(_CHUNK_BYTES):
                await asyncio.sleep(self.delay_s)
                if not (self.half_open or self.drop):
                    sink.write(data)
                    await sink.drain()


@asynccontextmanager
async def fault_proxy(target_port: int) -> AsyncIterator[FaultProxy]:
    """In front of a port of loopback, until the block ends."""
    proxy = FaultProxy(target_port)
    server = await asyncio.start_server(proxy.serve, LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()


@asynccontextmanager
async def _closing(
    writers: set[asyncio.StreamWriter], sink: asyncio.StreamWriter
) -> AsyncIterator[None]:
    try:
        with suppress(ConnectionError):  # either side may go at any time
            yield
    finally:
        writers.discard(sink)
        sink.close()
        with suppress(ConnectionError):
            await sink.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with a reset instead of a goodbye."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
