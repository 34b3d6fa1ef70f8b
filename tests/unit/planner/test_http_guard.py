"""What a request must satisfy before a route sees it, message by message."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from outrider_planner.http_guard import MOST_BODY_BYTES, HttpGuard, Message


class Route:
    """The application behind the guard: keeps the body it was given, and answers 200."""

    def __init__(self) -> None:
        self.body: bytes | None = None

    async def __call__(self, _scope: Message, receive: Any, send: Any) -> None:
        message = await receive()
        self.body = message.get("body")
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def asked(
    messages: Sequence[Message], headers: Mapping[str, str] | None = None, limit_s: float = 5.0
) -> tuple[int, dict[str, Any], Route]:
    """Status, answer and route of a PUT that arrives in these messages, then in none."""
    route, sent, waiting = Route(), list[Message](), list(messages)
    given = {"host": "127.0.0.1:7071", "content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/deployments/demo/settings",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def receive() -> Message:
        if not waiting:
            await asyncio.sleep(60.0)
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await HttpGuard(route, body_limit_s=limit_s)(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"]), route


def piece(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_pieces_arrives_whole() -> None:
    status, _, route = await asked([piece(b'{"a"', more=True), piece(b": 1}")])
    assert (status, route.body) == (200, b'{"a": 1}')


@pytest.mark.parametrize(
    ("messages", "status", "words"),
    [
        ([piece(b"x" * MOST_BODY_BYTES, more=True), piece(b"x")], 413, "larger than"),
        ([piece(b"{", more=True), {"type": "http.disconnect"}], 400, "ended early"),
        ([piece(b"{", more=True)], 408, "in time"),
    ],
)
async def test_bodies_are_bounded_in_size_and_time(
    messages: Sequence[Message], status: int, words: str
) -> None:
    given, answer, route = await asked(messages, limit_s=0.05)
    assert (given, answer["error"]["code"]) == (status, status)
    assert words in answer["error"]["message"]
    assert route.body is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::1", "a b"]
)
async def test_names_that_may_point_here_are_not_answered(host: str) -> None:
    status, _, route = await asked([piece(b"{}")], {"host": host})
    assert (status, route.body) == (421, None)


@pytest.mark.parametrize("host", ["127.0.0.1:7071", "localhost", "LOCALHOST:1", "[::1]:7071"])
async def test_addresses_are_answered(host: str) -> None:
    assert (await asked([piece(b"{}")], {"host": host}))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_forms_are_not_read(kind: str) -> None:
    status, _, route = await asked([piece(b"{}")], {"content-type": kind})
    assert (status, route.body) == (415, None)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7071", 200),
        ("http://127.0.0.1:9999", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ],
)
async def test_other_origins_change_nothing(origin: str, status: int) -> None:
    assert (await asked([piece(b"{}")], {"origin": origin}))[0] == status
