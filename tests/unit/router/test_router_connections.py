"""Connections below the application: how much of one may be kept, and for how long it is kept."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider_runtime.http import HEAD_LIMIT_S, MAX_HEAD_BYTES, listen, quiet_server
from tests.support.net import LOOPBACK

GET = b"GET / HTTP/1.1\r\nhost: a\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
LINE = b"x-a: " + b"a" * 1000 + b"\r\n"
SHORT_S = 0.15
Sent = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Application:
    """Answers `hello`, at once or once the body was read, and tells what headers it saw."""

    def __init__(self, reads: bool = True, answer: bytes = b"hello", takes_s: float = 0) -> None:
        self.reads = reads
        self.answer = answer
        self.takes_s = takes_s
        self.scopes: list[dict[str, Any]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        while self.reads and (await receive()).get("more_body"):
            pass
        size = str(len(self.answer)).encode()
        start = {"type": "http.response.start", "headers": [(b"content-length", size)]}
        await send({**start, "status": 200})
        await asyncio.sleep(self.takes_s)
        await send({"type": "http.response.body", "body": self.answer})


@asynccontextmanager
async def served(app: Application, **limits: Any) -> AsyncIterator[int]:
    """The port on which the application is served."""
    listener = listen(LOOPBACK, 0, send_buffer_bytes=4096)
    server = quiet_server(app, lifespan="off", **limits)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        async with asyncio.timeout(20):
            yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def connected(port: int, first: bytes = b"") -> Sent:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(first)
    return reader, writer


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


async def answered(sent: Sent) -> None:
    """Read one answer of `hello`."""
    await sent[0].readuntil(b"\r\n\r\n")
    assert await sent[0].readexactly(5) == b"hello"


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
    async with served(Application(reads)) as port:
        sent = await connected(port, first)
        # What the sockets hold on both sides counts as sent.
        assert await pour(sent, piece, 2**26) < MAX_HEAD_BYTES + 2**23
        other = await connected(port, GET + b"\r\n")
        await answered(other)
        other[1].close()


async def test_a_head_that_is_too_large_is_told_so() -> None:
    async with served(Application(), max_head_bytes=5000) as port:
        sent = await connected(port)
        for body in (b"", b"x" * 50_000):
            size = f"content-length: {len(body)}\r\n\r\n".encode()
            sent[1].write(b"POST / HTTP/1.1\r\nhost: a\r\n" + size + body)
            await answered(sent)
        sent[1].write(GET + b"x-endless: " + b"a" * 20_000)
        assert b" 431 " in await sent[0].readline()
        sent[1].close()


async def test_bodies_in_many_small_chunks_are_no_heads() -> None:
    async with served(Application(), max_head_bytes=5000) as port:
        sent = await connected(port, CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        await answered(sent)
        sent[1].close()


async def test_trailers_are_no_headers() -> None:
    app = Application()
    async with served(app) as port:
        sent = await connected(port, CHUNKED + b"0\r\nauthorization: Bearer k\r\n\r\n" + GET)
        sent[1].write(b"x-next: 1\r\n\r\n")
        await answered(sent)
        await answered(sent)
        sent[1].close()
    assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
    assert [name for name, _ in app.scopes[1]["headers"]] == [b"host", b"x-next"]


SLOW = {
    "nothing": (b"", b""),
    "half a head": (GET, b"HTTP/1.1 408"),
    "half a second head": (GET + b"\r\n" + GET, b"HTTP/1.1 200"),
    "half a body that nobody reads": (CHUNKED + b"2\r\n{}\r\n", b"HTTP/1.1 200"),
    "a body that nobody reads, byte by byte": (CHUNKED + b"2\r\n{}\r\n", b"HTTP/1.1 200"),
}


@pytest.mark.parametrize("kind", SLOW)
async def test_who_says_nothing_or_not_enough_is_let_go(kind: str) -> None:
    first, answer = SLOW[kind]
    async with served(Application(reads=False), head_limit_s=SHORT_S) as port:
        sent = await connected(port, first)
        if first and kind != "half a head":
            await answered(sent)
        if "byte by byte" in kind:
            sent[1].write(b"1")
        started_s = asyncio.get_running_loop().time()
        rest = await sent[0].read()
        assert asyncio.get_running_loop().time() - started_s < 5
        assert rest.startswith(answer) or answer.endswith(b"200")
        sent[1].close()
    assert 5 <= HEAD_LIMIT_S < 60


async def test_half_a_head_sent_byte_by_byte_is_let_go() -> None:
    async with served(Application(), head_limit_s=SHORT_S) as port:
        reader, writer = await connected(port)
        for byte in GET * 100:
            if reader.at_eof() or reader._transport.is_closing():  # type: ignore[attr-defined]
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(SHORT_S / 10)
        else:
            pytest.fail("it is still open")
        writer.close()


async def test_answers_may_take_their_time() -> None:
    """Neither is a long answer cut, nor one behind which half a head already waits."""
    async with served(Application(takes_s=4 * SHORT_S), head_limit_s=SHORT_S) as port:
        quiet, eager = await connected(port, GET + b"\r\n"), await connected(port, GET + b"\r\n")
        await asyncio.sleep(SHORT_S / 3)
        eager[1].write(GET)
        await answered(quiet)
        await answered(eager)
        for sent in (quiet, eager):
            sent[1].close()


@pytest.mark.parametrize("last", [b"\r\n", b"connection: close\r\n\r\n"])
async def test_who_does_not_take_an_answer_is_let_go(last: bytes) -> None:
    """What is left of it would otherwise be kept as long as the client likes."""
    whole = 2**23
    large = Application(answer=b"a" * whole)
    async with served(large, head_limit_s=SHORT_S) as port:
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect((LOOPBACK, port))
            stuck.sendall(GET + last)
            await asyncio.sleep(6 * SHORT_S)
            assert await asyncio.to_thread(drained, stuck) < whole


def drained(client: socket.socket) -> int:
    """Bytes that come until the connection ends."""
    client.settimeout(10)
    count = 0
    while got := client.recv(1 << 16):
        count += len(got)
    return count


async def test_who_takes_an_answer_slowly_gets_it_all() -> None:
    size = 2**20
    async with served(Application(answer=b"a" * size), head_limit_s=SHORT_S) as port:
        reader, writer = await connected(port, GET + b"connection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while piece := await reader.read(size // 16):
            got += len(piece)
            await asyncio.sleep(SHORT_S / 4)
        assert got == size
        writer.close()
