"""What the official client sees of good requests: streams, whole answers, usage, limits, stops."""

import asyncio
import itertools
from typing import Any

import pytest

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import Script, saying
from tests.support.router_stack import RunningRouter, Stack, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The capital of France is Paris 🎉, привет, 東京 <|im."
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
IDS = tiny.encode(TEXT)


async def ask(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


async def chunks_of(router: RunningRouter, **options: Any) -> list[Any]:
    stream = await ask(router, stream=True, **options)
    return [chunk async for chunk in stream]


def joined(chunks: list[Any], index: int = 0) -> str:
    choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


async def test_stream_equals_whole_answer_for_every_round_size(stack: Stack) -> None:
    fates: list[Any] = [{}, {"max_tokens": 9}, {"stop": ["Paris", "zzz"]}, {"stop": "東"}]
    worker, router = stack.worker, stack.router
    for sizes, options in itertools.product([(1,), (1, 3), (7,), (100,)], fates):
        worker.script = saying(TEXT, *sizes)
        whole = await ask(router, **options)
        chunks = await chunks_of(router, **options)
        assert joined(chunks) == whole.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert (await ask(router)).choices[0].message.content == TEXT
    assert router.settled()


async def test_prefix_law_and_length(stack: Stack) -> None:
    """Fewer tokens give a prefix, counted exactly, for both names of the limit (E08)."""
    worker, router = stack.worker, stack.router
    worker.script = saying(TEXT, 1, 4)
    for limit in range(1, len(IDS) + 1):
        name = "max_tokens" if limit % 2 else "max_completion_tokens"
        answer = await ask(router, **{name: limit})
        assert TEXT.startswith(answer.choices[0].message.content)
        assert answer.usage.completion_tokens == limit
        assert answer.choices[0].finish_reason == "length"
    both = await ask(router, max_tokens=9, max_completion_tokens=5)
    assert both.usage.completion_tokens == 5


async def test_stop_law(stack: Stack) -> None:
    """Any substring as stop: text before its first place, finish `stop`, tokens up to it."""
    worker, router = stack.worker, stack.router
    worker.script = saying(TEXT, 1, 5)
    for start in range(0, len(TEXT) - 3, 5):
        stop = TEXT[start : start + 3]
        answer = await ask(router, stop=[stop])
        assert answer.choices[0].message.content == TEXT[: TEXT.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].stop_reason == stop
        kept = tiny.decode(IDS[: answer.usage.completion_tokens])
        assert stop in kept
        assert stop not in tiny.decode(IDS[: answer.usage.completion_tokens - 1])
    assert router.settled()
    assert not worker.active


async def test_stop_string_cancels_its_choice_at_once_and_no_other(stack: Stack) -> None:
    def script(submit: worker_pb2.Submit) -> Script:
        if submit.choice_index == 0:
            return saying("b stop and more and more", 1, gap_s=0.005)
        return saying("a b c d e f g h i", 1, stall_after=4)

    worker, router = stack.worker, stack.router
    worker.script = script
    task = asyncio.create_task(ask(router, n=2, stop="stop"))
    await until(lambda: worker.cancelled, 2, "the first choice is cancelled")
    keys = [(s.request_id, s.choice_index) for s in worker.submitted]
    assert worker.cancelled == keys[:1]
    assert list(worker.active) == keys[1:], "the second goes on"
    worker.resume.set()
    answer = await task
    assert [c.message.content for c in answer.choices] == ["b ", "a b c d e f g h i"]
    assert worker.cancelled == keys[:1]


async def test_usage_chunk_and_frames(stack: Stack) -> None:
    """E01, E02, E03, E16: one role, no empty content, one finish per choice in an empty delta."""
    worker, router = stack.worker, stack.router
    worker.script = saying(TEXT, 1, 2)
    for n, options in itertools.product((1, 2), ({}, {"max_tokens": 3}, {"stop": "France"})):
        await check_frames(router, n, options)


async def check_frames(router: RunningRouter, n: int, options: Any) -> None:
    whole = await ask(router, n=n, **options)
    with_usage = await chunks_of(router, n=n, stream_options={"include_usage": True}, **options)
    *chunks, last = with_usage
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks)
    plain = await chunks_of(router, n=n, **options)
    assert all("usage" not in chunk.model_fields_set for chunk in plain)
    for index in range(n):
        mine = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert [c.delta.role for c in mine].count("assistant") == 1
        assert [c.delta.content for c in mine].count("") == 1
        assert [c.finish_reason for c in mine].count(None) == len(mine) - 1
        assert mine[-1].finish_reason is not None
        assert mine[-1].delta.content is None
    assert whole.usage.completion_tokens % n == 0
    assert len({chunk.id for chunk in chunks}) == 1


async def test_choices_of_different_length(stack: Stack) -> None:
    def script(submit: worker_pb2.Submit) -> Script:
        return saying("abcdef"[: 2 * submit.choice_index + 1], 2)

    worker, router = stack.worker, stack.router
    worker.script = script
    whole = await ask(router, n=3, seed=5)
    assert [c.message.content for c in whole.choices] == ["a", "abc", "abcde"]
    chunks = await chunks_of(router, n=3)
    assert [joined(chunks, index) for index in range(3)] == ["a", "abc", "abcde"]
    assert [s.choice_index for s in worker.submitted[:3]] == [0, 1, 2]
    assert {s.seed for s in worker.submitted[:3]} == {5}


async def test_stop_tokens_and_stop_reason(stack: Stack) -> None:
    script = Script([tiny.encode("ab")], stop_token_id=9)
    worker, router = stack.worker, stack.router
    worker.script = script
    own = await ask(router, extra_body={"stop_token_ids": [9]})
    models_own = await ask(router)
    assert (own.choices[0].finish_reason, own.choices[0].stop_reason) == ("stop", 9)
    assert models_own.choices[0].stop_reason is None
    assert own.choices[0].message.content == "ab"


async def test_token_ids_on_request(stack: Stack) -> None:
    worker, router = stack.worker, stack.router
    worker.script = saying(TEXT, 1, 3)
    extra = {"return_token_ids": True}
    whole = await ask(router, extra_body=extra)
    chunks = await chunks_of(router, extra_body=extra)
    assert whole.choices[0].token_ids == IDS
    streamed = [getattr(c.choices[0], "token_ids", None) or [] for c in chunks]
    assert [token_id for ids in streamed for token_id in ids] == IDS
    assert not hasattr((await ask(router)).choices[0], "token_ids")


async def test_headers_and_stream_format(stack: Stack) -> None:
    worker, router = stack.worker, stack.router
    worker.script = saying("ab", 1)
    body = {"model": "tiny", "messages": MESSAGES, "stream": True}
    response = await router.http.post(
        "/v1/chat/completions", json=body, headers={"X-Request-Id": "my-id.7"}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "my-id.7"
    assert int(response.headers["openai-processing-ms"]) >= 0
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: {") for line in lines[:-2])
    assert worker.submitted[0].request_id.startswith("my-id.7.")
    odd = await router.http.get("/health", headers={"X-Request-Id": "a b"})
    assert odd.headers["x-request-id"].startswith("req_")
