"""The library's HTTP side as the router uses it: the socket, and a server that leaves signals."""

import asyncio
import signal
import socket
from typing import Any

import pytest

from outrider_runtime.http import listen, quiet_server


async def hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_small_writes_are_sent_at_once() -> None:
    """asyncio turns Nagle's algorithm off only where the listening socket says that it is TCP."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        accepted.set_result(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    listener = listen("127.0.0.1", 0)
    async with await asyncio.start_server(connected, sock=listener):
        with socket.create_connection(listener.getsockname()):
            assert await asyncio.wait_for(accepted, 2)


def test_a_taken_port_is_an_os_error_and_brackets_are_no_part_of_an_address() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])
    with listen("[::1]", 0) as sixth:
        assert sixth.family is socket.AF_INET6


async def test_the_server_leaves_signals_to_the_process() -> None:
    before = handlers()
    listener = listen("127.0.0.1", 0)
    server = quiet_server(hello, lifespan="off")
    serving = asyncio.create_task(server.serve([listener]))
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b"hello" in await asyncio.wait_for(reader.read(), 2)
        assert handlers() == before
        writer.close()
        await writer.wait_closed()
    finally:
        server.should_exit = True
        await serving


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
