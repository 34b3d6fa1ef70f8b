"""One question and its streamed answer, over HTTP or straight from a worker over gRPC.

As little work as possible: of an answer's pieces only the first and the last are looked into.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httptools

from benchmarks.router.script import MODEL
from outrider.worker.v1 import worker_pb2 as wire
from outrider.worker.v1 import worker_pb2_grpc as wire_grpc
from outrider_runtime.rpc import open_channel

PROMPT = (
    "You keep the log of a small harbour. Tell in plain words what happened on the shore this "
    "morning, who was out, and what the weather did; mention every boat by its name."
)
_PROMPT_IDS = range(100, 150)
_CONTENT = re.compile(rb'"content":\s*"[^"]')
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
_ENOUGH_BYTES = 2048


@dataclass(frozen=True)
class Answer:
    """Its tokens, and how many events brought them.

    Over HTTP the events of role, end and usage, which carry no token, count too.
    """

    tokens: int
    events: int


class Wait:
    """The wait for an answer.

    Args:
        saw: gets the number of events each time some came.
        tell: gets the time at which the wait for the first token began, once.
    """

    def __init__(self, saw: Callable[[int], None], tell: Callable[[float], None]) -> None:
        self.saw = saw
        self._asked_s = time.perf_counter()
        self._tell: Callable[[float], None] | None = tell

    @property
    def for_first(self) -> bool:
        """No token came yet."""
        return self._tell is not None

    def first_came(self) -> None:
        """It did, or nobody waits any more."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self._asked_s)


Ask = Callable[[int, Wait], Coroutine[Any, Any, Answer]]


class AskFailed(RuntimeError):
    """What was asked did not answer as it should."""


@asynccontextmanager
async def http_askers(
    address: str, streams: int, tokens: int, gap_ms: int
) -> AsyncIterator[list[Ask]]:
    """One connection for each stream."""
    host, _, port = address.partition(":")
    request = _request(address, tokens, gap_ms)
    loop = asyncio.get_running_loop()
    asks: list[Ask] = []
    transports = []
    for _ in range(streams):
        transport, connection = await loop.create_connection(
            lambda: _Connection(request, tokens), host, int(port)
        )
        transports.append(transport)
        asks.append(connection.ask)
    try:
        yield asks
    finally:
        for transport in transports:
            transport.close()


def _request(address: str, tokens: int, gap_ms: int) -> bytes:
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": tokens,
            "seed": gap_ms,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Asks one thing at a time."""

    def __init__(self, request: bytes, tokens: int) -> None:
        self._request = request
        self._tokens = tokens
        self._begin(Wait(lambda events: None, lambda asked_s: None))

    def _begin(self, wait: Wait) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait = wait
        self._head = self._tail = b""
        self._events = 0

    async def ask(self, _number: int, wait: Wait) -> Answer:
        """Raises AskFailed."""
        self._begin(wait)
        self._transport.write(self._request)
        await self._answered
        said = _TOKENS.findall(self._tail)
        if b"[DONE]" not in self._tail or not said or int(said[-1]) != self._tokens:
            raise AskFailed(f"not the whole answer: {(self._head + self._tail)[-800:]!r}")
        return Answer(self._tokens, self._events)

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(AskFailed("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        events = body.count(b"data: {")
        self._events += events
        self._wait.saw(events)
        self._tail = (self._tail + body)[-_ENOUGH_BYTES:]
        if self._wait.for_first:
            self._head += body
            if _CONTENT.search(self._head):
                self._wait.first_came()

    def on_message_complete(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)


@asynccontextmanager
async def grpc_asker(
    address: str, streams: int, tokens: int, gap_ms: int
) -> AsyncIterator[list[Ask]]:
    """All streams share one Attach stream, as a router's requests do."""
    async with open_channel(address) as channel:
        await channel.channel_ready()
        call = wire_grpc.WorkerServiceStub(channel).Attach()
        asker = _WorkerAsker(call, tokens, gap_ms)
        reading = asyncio.create_task(asker.read())
        try:
            yield [asker.ask] * streams
        finally:
            reading.cancel()
            call.cancel()


@dataclass
class _Waiting:
    answered: "asyncio.Future[None]"
    wait: Wait
    tokens: int = 0
    events: int = 0


class _WorkerAsker:
    def __init__(self, call: Any, tokens: int, gap_ms: int) -> None:
        self._call = call
        self._sampling = wire.SamplingOptions(max_tokens=tokens)
        self._gap_ms = gap_ms
        self._waiting: dict[str, _Waiting] = {}
        self._writing = asyncio.Lock()

    async def ask(self, number: int, wait: Wait) -> Answer:
        waiting = _Waiting(asyncio.get_running_loop().create_future(), wait)
        self._waiting[str(number)] = waiting
        submit = wire.Submit(
            request_id=str(number),
            prompt_ids=_PROMPT_IDS,
            seed=self._gap_ms,
            sampling=self._sampling,
        )
        async with self._writing:
            await self._call.write(wire.AttachRequest(submit=submit))
        await waiting.answered
        return Answer(waiting.tokens, waiting.events)

    async def read(self) -> None:
        """Hand the news out."""
        async for response in self._call:
            for news in response.tokens.requests:
                waiting = self._waiting[news.request_id]
                waiting.wait.first_came()
                waiting.wait.saw(1)
                waiting.tokens += len(news.token_ids)
                waiting.events += 1
                if news.HasField("finish"):
                    del self._waiting[news.request_id]
                    waiting.answered.set_result(None)
