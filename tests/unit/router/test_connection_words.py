"""What a server says of what no application gets to see, when it says nothing, and to whom."""

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.support.raw_http import CHUNKED, GET, Application, answered, connected, served, write

HALF_HEAD = GET + b"x-endless: "
NO_HTTP = b"no HTTP\r\n\r\n"
LONG = b"a" * 20_000
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


def told(answer: bytes) -> tuple[int, Any]:
    """Status and body of an answer, which is all that came."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert {b"content-type: application/json", b"connection: close"} <= set(lines)
    assert b"content-length: %d" % len(body) in lines
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HALF_HEAD + LONG, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/1.1\r\nhost a\r\n\r\n", 400),
        (b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (CHUNKED + b"no size\r\n", 400),
        (CHUNKED + b"2;a", 431),
    ],
)
async def test_faults_have_the_applications_form(sent: bytes, status: int) -> None:
    def error_body(code: int, message: str) -> dict[str, Any]:
        return {"fault": f"{code}: {message}"}

    async with served(Application(), max_head_bytes=5000, error_body=error_body) as server:
        connection = await connected(server.port, sent)
        if status == 431:
            await write(connection, LONG)
        got, body = told(await connection[0].read())
        assert (got, body["fault"][:5]) == (status, f"{status}: ")
        connection[1].close()


async def test_a_head_that_is_too_large_is_told_so_behind_others() -> None:
    async with served(Application(), max_head_bytes=5000) as server:
        sent = await connected(server.port)
        for body in (b"", b"x" * 50_000):
            size = f"content-length: {len(body)}\r\n\r\n".encode()
            sent[1].write(b"POST / HTTP/1.1\r\nhost: a\r\n" + size + body)
            await answered(sent)
        sent[1].write(HALF_HEAD + LONG)
        status, body = told(await sent[0].read())
        assert (status, body["error"]["message"]) == (431, "the headers are too large")
        sent[1].close()


@pytest.mark.parametrize("behind", [HALF_HEAD, NO_HTTP, GET + b"\r\n" + NO_HTTP])
async def test_nothing_is_written_into_an_answer(behind: bytes) -> None:
    """What comes behind a request is not told of within the answer to that one."""
    last = asyncio.Event()
    async with served(Application(last=last), max_head_bytes=5000) as server:
        sent = await connected(server.port, GET + b"\r\n")
        await sent[0].readuntil(b"\r\n\r\n")
        await write(sent, behind, LONG)
        assert await sent[0].read() == b"h"
        last.set()
        sent[1].close()


@pytest.mark.parametrize("behind", [HALF_HEAD, NO_HTTP])
async def test_nothing_is_taken_for_the_answer_to_another_request(behind: bytes) -> None:
    """A client that still waits for its first answer would take the second one for it."""

    async def silent(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with served(silent, max_head_bytes=5000) as server:  # type: ignore[arg-type]
        sent = await connected(server.port, GET + b"\r\n" + behind)
        await write(sent, LONG)
        assert await sent[0].read() == b""
        sent[1].close()


async def test_nothing_is_said_behind_an_early_answer() -> None:
    async with served(Application(reads=False), max_head_bytes=5000) as server:
        sent = await connected(server.port, CHUNKED)
        await answered(sent)
        sent[1].write(b"no size\r\n")
        assert await sent[0].read() == b""
        sent[1].close()


OFFERS = {
    "sized": (b"1.1", OFFER + b"Content-Length: 2\r\n\r\n", b"{}"),
    "chunked": (b"1.1", OFFER + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
    "the last": (b"1.1", OFFER + b"Connection: close\r\nContent-Length: 2\r\n\r\n", b"{}"),
    "of old": (b"1.0", OFFER + b"Content-Length: 2\r\n\r\n", b"{}"),
    "repeated": (b"1.1", OFFER + b"upgrade: b\r\nContent-Length: 2\r\n\r\n", b"{}"),
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", OFFERS)
async def test_offers_of_other_protocols_are_passed_over(
    kind: str, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's client offers HTTP/2 with its first request, and sends the body all the same."""
    version, headers, body = OFFERS[kind]
    whole = b"POST /a?b=c HTTP/" + version + b"\r\nHost: a\r\nX-Own: 1\r\n" + headers + body
    app = Application()
    with caplog.at_level(logging.INFO, "uvicorn"):
        async with served(app) as server:
            sent = await connected(server.port)
            for piece in [whole] if at_once else [bytes([byte]) for byte in whole]:
                sent[1].write(piece)
                await asyncio.sleep(0)
            await answered(sent)
            sent[1].close()
    (scope,) = app.scopes
    names = [name for name, _ in scope["headers"]]
    assert app.bodies == [b"{}"]
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/a", b"b=c")
    assert scope["http_version"] == version.decode()
    assert b"upgrade" not in names
    assert names[:2] == [b"host", b"x-own"]
    assert not [line for line in caplog.messages if "pgrade" in line or "Invalid" in line]


async def test_offers_with_every_request_of_a_connection() -> None:
    app = Application()
    get = b"GET / HTTP/1.1\r\nhost: a\r\n" + OFFER + b"\r\n"
    post = CHUNKED[:-2] + OFFER + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    async with served(app) as server:
        sent = await connected(server.port, (get + post) * 20 + GET + b"\r\n")
        for _ in range(41):
            await answered(sent)
        sent[1].close()
    assert app.bodies == [b"", b"{}"] * 20 + [b""]


async def test_heads_that_offer_are_bounded_too() -> None:
    async with served(Application(), max_head_bytes=5000) as server:
        sent = await connected(server.port, GET + OFFER + b"x-endless: " + LONG)
        assert told(await sent[0].read())[0] == 431
        sent[1].close()
