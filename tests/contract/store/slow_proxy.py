"""A proxy on loopback in front of a server: answers arrive late, and connections are counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tests.support.net import LOOPBACK


@dataclass
class SlowProxy:
    """``delay_s`` holds for every answer from now on; ``connections`` were accepted so far."""

    port: int
    delay_s: float
    connections: int = 0

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"


@asynccontextmanager
async def slow_proxy(target_port: int, delay_s: float) -> AsyncIterator[SlowProxy]:
    """In front of a port of loopback, until the block ends."""
    proxy = SlowProxy(0, delay_s)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.connections += 1
        there, back = await asyncio.open_connection(LOOPBACK, target_port)
        for source, sink, late in ((reader, back, False), (there, writer, True)):
            tasks.add(asyncio.create_task(_pump(proxy, source, sink, late)))

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    proxy: SlowProxy, source: asyncio.StreamReader, sink: asyncio.StreamWriter, late: bool
) -> None:
    try:
        while data := await source.read(65_536):
            if late:
                await asyncio.sleep(proxy.delay_s)
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass  # either side may go at any time
    finally:
        sink.close()
        with suppress(ConnectionError):
            await sink.wait_closed()
