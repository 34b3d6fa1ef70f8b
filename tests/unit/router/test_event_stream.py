"""Writing events: cast ones are those that encoding gives, and a client's silence has an end."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_router.generation import Delta, Ending
from outrider_router.metrics import RequestRecord, RouterMetrics
from outrider_router.openai.chat import ChatWriter
from outrider_router.openai.completions import CompletionWriter
from outrider_router.openai.dialect import Writer
from outrider_router.openai.events import EventWriter, event
from outrider_router.openai.frame import Frame
from outrider_router.openai.stream import EventStream, StreamLimits
from outrider_router.text.parts import CallBegun, Content, Part, Reasoning
from outrider_runtime.clock import SystemClock
from outrider_runtime.metrics import new_registry

PARTS = st.builds(Content, st.text(max_size=8)) | st.builds(Reasoning, st.text(max_size=8))


def frame(writer: Writer, **options: Any) -> Frame:
    # A name that holds what marks the text's place in a mould.
    return Frame(writer, "id", 1, 'a "\0" b', "fp_1", None, True, **options)


@pytest.mark.parametrize("writer", [ChatWriter(), CompletionWriter()])
@given(st.lists(st.tuples(st.integers(0, 2), PARTS), max_size=6))
def test_cast_events_are_the_encoded_ones(writer: Writer, said: list[tuple[int, Part]]) -> None:
    around = frame(writer)
    events = EventWriter(around)
    for index, part in said:
        delta = Delta(index, (part,), (7,))
        plain = around.chunk([writer.delta(index, part, around.call_ids)])
        assert events.of(delta) == event(plain)


@pytest.mark.parametrize(
    ("parts", "ending", "chunks"),
    [
        ((), None, 0),
        ((Content("a"), CallBegun(0, "f")), None, 2),
        ((CallBegun(0, "f"),), None, 1),
        ((Content("a"),), Ending("stop"), 2),
        ((), Ending("length"), 1),
    ],
)
def test_other_deltas_are_written_whole(
    parts: tuple[Part, ...], ending: Ending | None, chunks: int
) -> None:
    written = EventWriter(frame(ChatWriter())).of(Delta(0, parts, (7,), ending))
    events = [json.loads(one) for one in written.decode().split("data: ")[1:]]
    assert len(events) == chunks
    if ending is not None:
        assert events[-1]["choices"][0]["finish_reason"] == ending.reason


def test_what_is_told_of_tokens_is_in_every_event() -> None:
    telling = EventWriter(frame(ChatWriter(), prompt_ids=[[1]]))
    written = telling.of(Delta(0, (Content("a"),), (7, 8)))
    assert json.loads(written[len("data: ") :])["choices"][0]["token_ids"] == [7, 8]


def test_hidden_thinking_is_not_written() -> None:
    hiding = EventWriter(frame(ChatWriter(), with_reasoning=False))
    assert hiding.of(Delta(0, (Reasoning("hm"),), (7,))) == b""


class Client:
    """Takes what is sent, or waits before it takes a piece."""

    def __init__(self, stuck_at: int | None = None) -> None:
        self.taken: list[bytes] = []
        self._stuck_at = stuck_at
        self.gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            return
        if len(self.taken) == self._stuck_at:
            await asyncio.Event().wait()
        self.taken.append(message["body"])

    async def receive(self) -> dict[str, str]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def outcome_of(client: Client, limits: StreamLimits, *waits_s: float) -> str | None:
    """How a stream ends whose pieces come after these waits."""

    async def events() -> AsyncGenerator[bytes]:
        for wait_s in waits_s:
            await asyncio.sleep(wait_s)
            yield b"piece"
        record.end("stop")

    record = RequestRecord(RouterMetrics(new_registry()), SystemClock(), "chat.completions")
    stream = EventStream(events(), AsyncExitStack(), record, limits)
    async with asyncio.timeout(5):
        await stream({}, client.receive, client.send)
    return record.outcome


async def test_a_piece_that_is_not_taken_ends_the_stream() -> None:
    client = Client(stuck_at=1)
    assert await outcome_of(client, StreamLimits(0.05, 60.0), 0, 0, 0) == "cancelled"
    assert client.taken == [b"piece"]


async def test_a_ping_that_is_not_taken_ends_the_stream() -> None:
    client = Client(stuck_at=1)
    assert await outcome_of(client, StreamLimits(0.05, 0.05), 0, 60.0) == "cancelled"
    assert client.taken == [b"piece"]


async def test_silence_is_broken_and_the_pieces_come_whole() -> None:
    client = Client()
    assert await outcome_of(client, StreamLimits(0.4, 0.05), 0, 0.3, 0) == "stop"
    assert [piece for piece in client.taken if piece != b": ping\n\n"] == [*[b"piece"] * 3, b""]
    assert client.taken.count(b": ping\n\n") >= 2


async def test_a_client_that_goes_ends_the_stream() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.05, client.gone.set)
    assert await outcome_of(client, StreamLimits(9.0, 9.0), 0, 60.0) == "cancelled"
