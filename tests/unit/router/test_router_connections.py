"""Connections below the application: how much of one may be kept, and for how long it is kept."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outrider_runtime.http import HEAD_LIMIT_S, MAX_HEAD_BYTES
from tests.support.net import LOOPBACK
from tests.support.raw_http import (
    CHUNKED,
    GET,
    Application,
    LoopTime,
    Sent,
    answered,
    connected,
    served,
    until,
)

LINE = b"x-a: " + b"a" * 1000 + b"\r\n"
KEEP_ALIVE_S = 75


@pytest.fixture
async def time() -> LoopTime:
    return LoopTime(asyncio.get_running_loop())


async def pour(sent: Sent, piece: bytes, limit_bytes: int) -> int:
    """Send on until the server ends the connection; the bytes sent, at most the limit."""
    reader, writer = sent
    count = 0
    try:
        while count < limit_bytes and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
            count += len(piece)
    except OSError:
        pass
    writer.close()
    return count


ENDLESS = {
    "headers": (GET, LINE),
    "one header": (GET + b"x-a: ", b"a" * 1000),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", LINE),
    "one trailer": (CHUNKED + b"0\r\nx-a: ", b"a" * 1000),
    "a chunk's line": (CHUNKED + b"2;", b"a" * 1000),
    "blank lines": (b"", b"\r\n" * 500),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("reads", [True, False])
async def test_what_has_no_end_is_cut(kind: str, reads: bool) -> None:
    """Parsers keep what they have of a header, and servers all headers, also those that come last.

    Also where a refusal is long written, as to a client without a key.
    """
    first, piece = ENDLESS[kind]
    async with served(Application(reads)) as server:
        sent = await connected(server.port, first)
        # What the sockets hold on both sides counts as sent.
        assert await pour(sent, piece, 2**26) < MAX_HEAD_BYTES + 2**23
        other = await connected(server.port, GET + b"\r\n")
        await answered(other)
        other[1].close()


async def test_bodies_in_many_small_chunks_are_no_heads() -> None:
    async with served(Application(), max_head_bytes=5000) as server:
        sent = await connected(server.port, CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        await answered(sent)
        sent[1].close()


async def test_trailers_are_no_headers() -> None:
    app = Application()
    async with served(app) as server:
        sent = await connected(server.port, CHUNKED + b"0\r\nauthorization: Bearer k\r\n\r\n" + GET)
        sent[1].write(b"x-next: 1\r\n\r\n")
        await answered(sent)
        await answered(sent)
        sent[1].close()
    assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
    assert [name for name, _ in app.scopes[1]["headers"]] == [b"host", b"x-next"]


SLOW = {
    "nothing": (b"", b""),
    "half a head": (GET, b"HTTP/1.1 408"),
    "half a second head": (GET + b"\r\n" + GET, b"HTTP/1.1 408"),
    "half a body that nobody reads": (CHUNKED + b"2\r\n{}\r\n", b""),
    "a body that nobody reads, byte by byte": (CHUNKED + b"2\r\n{}\r\n1", b""),
}


@pytest.mark.parametrize("kind", SLOW)
async def test_who_says_nothing_or_not_enough_is_let_go(kind: str, time: LoopTime) -> None:
    first, last = SLOW[kind]
    async with served(Application(reads=False)) as server:
        sent = await connected(server.port, first)
        if first and kind != "half a head":
            await answered(sent)
        await time.pass_s(HEAD_LIMIT_S - 1)
        assert server.open() == 1
        await time.pass_s(1)
        assert (await sent[0].read()).startswith(last)
        assert server.open() == 0
        sent[1].close()
    assert 5 <= HEAD_LIMIT_S < 60


async def test_half_a_head_sent_byte_by_byte_is_let_go(time: LoopTime) -> None:
    async with served(Application()) as server:
        sent = await connected(server.port)
        for number in range(int(HEAD_LIMIT_S)):
            assert server.open() == 1
            sent[1].write(GET[number : number + 1])
            await time.pass_s(1)
        assert b" 408 " in await sent[0].readline()
        sent[1].close()


async def test_answers_may_take_their_time(time: LoopTime) -> None:
    """Neither is a long answer cut, nor one behind which half a head already waits."""
    last = asyncio.Event()
    async with served(Application(last=last)) as server:
        quiet, eager = [await connected(server.port, GET + b"\r\n") for _ in range(2)]
        for sent in (quiet, eager):
            await sent[0].readuntil(b"\r\n\r\n")
        eager[1].write(GET)
        await time.pass_s(10 * KEEP_ALIVE_S)
        last.set()
        for sent in (quiet, eager):
            assert await sent[0].readexactly(5) == b"hello"
            sent[1].close()


REST = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize("rest", [REST, REST + b"\r\n"])
async def test_who_was_answered_early_is_as_idle_as_others(rest: bytes, time: LoopTime) -> None:
    """Where a refused request comes to its end, its connection is there for the next one."""
    async with served(Application(reads=False)) as server:
        sent = await connected(server.port, CHUNKED)
        await answered(sent)
        await time.pass_s(HEAD_LIMIT_S - 1)
        sent[1].write(rest)
        await time.pass_s(KEEP_ALIVE_S - 1)
        assert server.open() == 1
        sent[1].write(GET + b"\r\n")
        await answered(sent)
        await time.pass_s(KEEP_ALIVE_S - 1)
        assert server.open() == 1
        await time.pass_s(1)
        assert await sent[0].read() == b""
        sent[1].close()


async def test_the_rest_of_an_early_answered_request_ends_no_waiting(time: LoopTime) -> None:
    """The time for being idle also runs where nothing comes behind that rest."""
    async with served(Application(reads=False)) as server:
        sent = await connected(server.port, CHUNKED)
        await answered(sent)
        sent[1].write(REST)
        await time.pass_s(KEEP_ALIVE_S)
        assert await sent[0].read() == b""
        assert server.open() == 0
        sent[1].close()


@contextmanager
def slow_client(port: int, last: bytes) -> Iterator[socket.socket]:
    """One for which the kernel keeps little, and that has asked for an answer."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((LOOPBACK, port))
        client.sendall(GET + last)
        client.setblocking(False)
        yield client


@pytest.mark.parametrize("last", [b"\r\n", b"connection: close\r\n\r\n"])
async def test_who_does_not_take_an_answer_is_let_go(last: bytes, time: LoopTime) -> None:
    """What is left of it would otherwise be kept as long as the client likes."""
    size = 2**20
    async with served(Application(answer=b"a" * size)) as server:
        with slow_client(server.port, last):
            await until(lambda: server.left_bytes() > size // 2)
            await time.pass_s(HEAD_LIMIT_S - 1)
            assert server.open() == 1
            # What the kernel took meanwhile may have counted as taken, once.
            await time.pass_s(1)
            await time.pass_s(HEAD_LIMIT_S)
            assert server.open() == 0


async def test_who_takes_an_answer_slowly_gets_it_all(time: LoopTime) -> None:
    size, got = 2**20, bytearray()
    receive = asyncio.get_running_loop().sock_recv
    async with served(Application(answer=b"a" * size)) as server:
        with slow_client(server.port, b"connection: close\r\n\r\n") as client:
            await until(lambda: server.left_bytes() > size // 2)
            while left := server.left_bytes():
                while server.left_bytes() > left * 3 // 4 and server.open():
                    got += await receive(client, 1 << 16)
                await time.pass_s(HEAD_LIMIT_S - 1)
            while piece := await receive(client, 1 << 16):
                got += piece
    assert len(got.partition(b"\r\n\r\n")[2]) == size
