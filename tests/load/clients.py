"""HTTP clients for load: bare sockets, so that a test decides when what is read and who goes when.

What the long form does more of is decided by `OUTRIDER_LOAD=long`, which `make test-load` sets.
"""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.net import LOOPBACK

LONG = os.environ.get("OUTRIDER_LOAD") == "long"
CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
DONE = b"data: [DONE]\n\n"
Amount = TypeVar("Amount", int, float)


def scaled(short: Amount, long: Amount) -> Amount:
    """A count, or a time, for the form that runs."""
    return long if LONG else short


@dataclass(frozen=True)
class Answer:
    """A response; `body` is whole, chunks joined."""

    status: int
    body: bytes
    seconds: float


def request_bytes(body: bytes | dict[str, Any], path: str = CHAT) -> bytes:
    """A POST on a connection that ends with its answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def ask(port: int, request: bytes) -> Answer:
    """Send a request and read its answer to the end."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(request)
        await writer.drain()
        raw = await reader.read()
    finally:
        writer.close()
    return answer_of(raw, loop.time() - started_s)


def slow_socket(port: int, request: bytes, buffer_bytes: int = 4096) -> socket.socket:
    """A connection whose kernel takes little of an answer that nobody reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    client.connect((LOOPBACK, port))
    client.sendall(request)
    return client


def answer_of(raw: bytes, seconds: float = 0.0) -> Answer:
    """What a connection brought, as an answer."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in head.lower()
    body = b"".join(_chunks(rest)) if chunked else rest
    return Answer(int(head.split(b" ", 2)[1]), body, seconds)


def _chunks(rest: bytes) -> Iterator[bytes]:
    """The pieces of a chunked body; stops where the connection was cut."""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        yield rest[:length]
        rest = rest[length + 2 :]


def events_of(body: bytes) -> list[Any]:
    """The values of a stream's events, comments left out; the closing mark stays as text.

    Raises:
        AssertionError: something in it is no event.
    """
    values: list[Any] = []
    for block in body.decode().split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: "), block[:80]
            data = block.removeprefix("data: ")
            assert "\n" not in data, block[:80]
            values.append(data if data == "[DONE]" else json.loads(data))
    return values


def quantile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
