"""Made-up bodies and made-up readers of streams: no fault of the server, answers of one form.

Bodies are sent beside the event loop that plays the worker, to a router that is a process.
"""

import asyncio
import json
import socket
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider_router.openai.schema import ChatBody, CompletionBody
from tests.load.clients import (
    CHAT,
    GOOD,
    LONG,
    Answer,
    answer_of,
    events_of,
    request_bytes,
    scaled,
    slow_socket,
)
from tests.support.fake_worker import ALL_OPTIONS, FakeWorker, saying
from tests.support.net import LOOPBACK
from tests.support.router_process import router_process

pytestmark = pytest.mark.load
TEXT = "a b\n\ndata: c é 🙂 “d” \\u0000 [DONE] end"
CHATS, COMPLETIONS, RAW, READERS = (
    scaled(short, long) for short, long in ((60, 12_000), (30, 5_000), (15, 1_000), (15, 2_000))
)
EXPECTED = {200, 400, 404, 405, 413, 415}
ERROR_KEYS = {"message", "type", "param", "code"}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 40),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["auto", "required", "none", "json_object", "tiny", "", "\ud800", "function"]),
)
words = st.sampled_from(["type", "function", "name", "content", "text", "schema", "role", "mode"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(words | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
roles = st.sampled_from(["user", "assistant", "system", "tool", "developer", "nobody"])
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles | values, "content": st.text(max_size=20) | values},
        optional={"tool_calls": values, "name": values, "reasoning_content": values},
    )
    | values,
    max_size=3,
)


good_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(max_size=20)}
    ),
    min_size=1,
    max_size=3,
)
good_prompts = st.text(min_size=1, max_size=20) | st.lists(
    st.integers(3, 200), min_size=1, max_size=5
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "n": st.integers(1, 4),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "stop": st.lists(st.text(min_size=1, max_size=2), max_size=4),
        "stream": st.booleans(),
        "stream_interval": st.integers(1, 9),
        "max_tokens": st.integers(1, 60),
        "return_token_ids": st.booleans(),
        "priority": st.integers(-3, 3),
        "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
        "prediction": st.builds(lambda text: {"type": "content", "content": text}, st.text()),
        "metadata": values,
    },
)


def bodies(kind: type[ChatBody] | type[CompletionBody], good: Any, prompts: Any) -> Any:
    """Bodies that are good, and such with any fields made up and some that nobody knows."""
    field = "messages" if kind is ChatBody else "prompt"
    made_up = st.sampled_from([*sorted(kind.model_fields), "functions", "store", "best_of", "x"])
    some = st.dictionaries(made_up, values, max_size=2)
    wild = st.builds(lambda prompt, own, odd: own | {field: prompt} | odd, prompts, plausible, some)
    tame = st.builds(lambda prompt, own: own | {field: prompt}, good, plausible)
    return st.builds(lambda body: {"model": "tiny", "max_tokens": 4} | body, tame | wild)


def quiet(examples: int) -> Any:
    """Settings for so many examples; the short form is the same every time."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not LONG,
        suppress_health_check=list(HealthCheck),
    )


class Fuzzer:
    """Sends what is made up and checks what comes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.counts: Counter[int] = Counter()

    def run(self) -> None:
        """All kinds, one after another."""
        self._bodies(CHAT, CHATS, bodies(ChatBody, good_messages, messages))
        prompts = bodies(CompletionBody, good_prompts, good_prompts | values)
        self._bodies("/v1/completions", COMPLETIONS, prompts)
        self._raw()
        self._readers()

    def _bodies(self, path: str, examples: int, strategy: Any) -> None:
        @quiet(examples)
        @given(strategy)
        def check(body: Any) -> None:
            self._check(request_bytes(json.dumps(body).encode(), path))

        check()

    def _raw(self) -> None:
        good = json.dumps(GOOD).encode()
        cut = st.builds(
            lambda at, tail: good[:at] + tail, st.integers(0, len(good)), st.binary(max_size=8)
        )
        paths = st.sampled_from(
            [CHAT, "/v1/completions", "/tokenize", "/detokenize", "/v1/models", "/x"]
        )

        @quiet(RAW)
        @given(st.binary(max_size=40) | cut, paths)
        def check(body: bytes, path: str) -> None:
            self._check(request_bytes(body, path))

        check()

    def _check(self, request: bytes) -> Answer:
        answer = self._answer(request)
        # A busy machine may hold up the worker, which is the test's own, for too long.
        for _ in range(20):
            if answer.status != 503:
                break
            time.sleep(0.5)
            answer = self._answer(request)
        self.counts[answer.status] += 1
        assert answer.status in EXPECTED, (request, answer)
        if answer.status != 200:
            assert set(json.loads(answer.body)["error"]) == ERROR_KEYS
        elif answer.body.startswith(b"data: "):
            _check_stream(answer.body)
        else:
            json.loads(answer.body)
        return answer

    def _answer(self, request: bytes) -> Answer:
        with socket.create_connection((LOOPBACK, self.port)) as client:
            client.sendall(request)
            return answer_of(_to_the_end(client))

    def _readers(self) -> None:
        """However a stream is read, it says the same; whoever goes early harms nobody."""
        request = request_bytes(GOOD | {"stream": True, "stream_options": {"include_usage": True}})
        pieces = st.lists(
            st.tuples(st.integers(1, 700), st.sampled_from([0, 0, 0, 0.002])), max_size=30
        )

        @quiet(READERS)
        @given(pieces, st.booleans())
        def check(steps: list[tuple[int, float]], leaves: bool) -> None:
            with slow_socket(self.port, request) as client:
                got = b""
                for size, wait_s in steps:
                    time.sleep(wait_s)
                    got += client.recv(size)
                if not leaves:
                    got += _to_the_end(client)
                    assert _text_of(_check_stream(answer_of(got).body)) == TEXT

        check()


def _to_the_end(client: socket.socket) -> bytes:
    client.settimeout(20)
    got = b""
    while piece := client.recv(65_536):
        got += piece
    return got


def _check_stream(body: bytes) -> list[Any]:
    """The events of a stream, which ends either well or in an error."""
    events = events_of(body)
    if events[-1] == "[DONE]":
        assert all(isinstance(one, dict) and "error" not in one for one in events[:-1])
    else:
        assert set(events[-1]["error"]) == ERROR_KEYS
        assert "[DONE]" not in events
    return events


def _text_of(events: list[Any]) -> str:
    choices = [choice for one in events if isinstance(one, dict) for choice in one["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_made_up_requests_and_readers() -> None:
    async with (
        FakeWorker(script=saying(TEXT, 1, 3), options=ALL_OPTIONS) as worker,
        router_process(worker, OUTRIDER_ROUTER_MAX_CHOICES="64") as router,
    ):
        await router.until_ready()
        fuzzer = Fuzzer(router.port)
        await asyncio.to_thread(fuzzer.run)
        total, by_status = fuzzer.counts.total(), dict(fuzzer.counts)
        print(f"\nfuzz: {total} made-up requests, {READERS} readers: {by_status}")
        assert fuzzer.counts[200] > 0.2 * total
        assert fuzzer.counts[400] > 0.2 * total
        await router.until_idle()
        samples = await router.samples()
        assert samples["outcome:error"] == 0
        assert router.process.returncode is None
