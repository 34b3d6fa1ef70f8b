"""An OpenAI server without a model, as a process of its own: what the peers stand in front of.

    python -m benchmarks.router.upstream --folder MODEL --port PORT

Plays the script over plain HTTP with one event, and one write, per token. As light as can be, so
that what is measured is the gateway: events are bytes made once, requests are read by httptools.
"""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools
import uvloop

from benchmarks.router.script import MODEL, Part, Rounds, ServerOptions, tokens_of
from outrider_runtime.lifecycle import stop_event

_PATHS = ("/v1/chat/completions", "/chat/completions")
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Script:
    """The events of every answer, encoded."""

    def __init__(self, folder: Path) -> None:
        _, self.texts = tokens_of(folder)
        delta: dict[str, str] = {"role": "assistant"}
        self.first = _event(_choice(delta | {"content": self.texts[0]}))
        self.more = [_event(_choice({"content": text})) for text in self.texts]
        self.end = _event(_choice({}, "length"))

    def token(self, at: int) -> bytes:
        """The event of one token."""
        return self.more[at % len(self.more)] if at else self.first

    def whole(self, tokens: int, prompt_tokens: int) -> bytes:
        """A complete answer's body."""
        text = "".join(self.texts[at % len(self.texts)] for at in range(tokens))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        body = _outer("chat.completion") | {"choices": [choice]}
        return json.dumps(body | {"usage": _usage(prompt_tokens, tokens)}).encode()


@dataclass
class _Answer(Part):
    """An answer as a stream of events."""

    connection: "_Connection" = field(kw_only=True)
    usage: bytes = b""


class _Connection(asyncio.Protocol):
    """One client's connection; requests on it follow one another."""

    def __init__(self, script: Script, rounds: dict[int, Rounds[_Answer]]) -> None:
        self._script = script
        self._rounds = rounds
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._may_write.set()
        for rounds in self._rounds.values():
            rounds.drop(lambda answer: answer.connection is self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            # Some gateways first try whether a server speaks gRPC.
            self._transport.close()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url.decode().partition("?")[0] not in _PATHS:
            self._whole(json.dumps(_about()).encode())
            return
        asked = json.loads(self._body)
        total = asked.get("max_completion_tokens") or asked["max_tokens"]
        prompt_tokens = len(json.dumps(asked["messages"])) // 4
        if not asked.get("stream"):
            self._whole(self._script.whole(total, prompt_tokens))
            return
        usage = _outer("chat.completion.chunk") | {"choices": []}
        usage["usage"] = _usage(prompt_tokens, total)
        answer = _Answer(total, connection=self, usage=_event(usage))
        self._transport.write(_STREAM_HEAD)
        self.say(answer)
        if not answer.ended:
            self._later(answer, asked.get("seed") or 0)

    def say(self, answer: _Answer) -> None:
        """One more token, and what follows the last."""
        self._transport.write(self._script.token(answer.at))
        answer.at += 1
        if answer.ended:
            self._transport.write(self._script.end + answer.usage + _LAST_CHUNK)

    async def ready(self) -> None:
        """Wait until the client has read most of what was said."""
        await self._may_write.wait()

    def _later(self, answer: _Answer, gap_ms: int) -> None:
        if gap_ms not in self._rounds:
            self._rounds[gap_ms] = Rounds(gap_ms / 1000, _play)
        self._rounds[gap_ms].add(answer)

    def _whole(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)


async def _play(answers: list[_Answer]) -> None:
    for answer in tuple(answers):
        await answer.connection.ready()
        answer.connection.say(answer)


def _outer(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-0", "object": kind, "created": 0, "model": MODEL}


def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return _outer("chat.completion.chunk") | {"choices": [choice]}


def _usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }


def _about() -> dict[str, Any]:
    """Enough of an answer to whatever gateways ask a server about itself."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "nobody"}
    return {"object": "list", "data": [model], "status": "ok", "model_path": MODEL}


def _event(value: dict[str, Any]) -> bytes:
    """One event as one chunk of the body."""
    data = f"data: {json.dumps(value)}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _serve(options: ServerOptions) -> None:
    script, rounds = Script(options.folder), dict[int, Rounds[_Answer]]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(script, rounds), "127.0.0.1", options.port, backlog=2048
    )
    async with server:
        await stop_event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(ServerOptions.parsed(__doc__)))
