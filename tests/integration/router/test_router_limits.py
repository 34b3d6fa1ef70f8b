"""What the router does not let one client take from the others: places, time, memory."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outrider_router.text.tokenizer import ModelTokenizer
from tests.support import tiny_tokenizers as tiny
from tests.support import tool_models
from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import RunningRouter, Stack, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
JSON = {"content-type": "application/json"}


def error_of(response: Any) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["code"]


# As many as a body may hold at most, or of about 1 MiB.
HOSTILE: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "floats": (TEXT, "prompt", lambda: [1.5] * 200_000),
    "all but the last": (TEXT, "prompt", lambda: [7] * 250_000 + [None]),
    "lists": (TEXT, "prompt", lambda: [[1.5]] * 60_000),
    "empty lists": (TEXT, "prompt", lambda: [[]] * 60_000),
    "stops": (CHAT, "stop", lambda: [1.5] * 200_000),
    "stop tokens": (CHAT, "stop_token_ids", lambda: ["a"] * 120_000),
    "biases": (CHAT, "logit_bias", lambda: {f"x{at}": 1 for at in range(80_000)}),
    "speculation": (CHAT, "speculation", lambda: {f"x{at}": 1 for at in range(80_000)}),
    "tokens": ("/detokenize", "tokens", lambda: ["a"] * 120_000),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_large_bad_bodies_are_refused_at_once(stack: Stack, name: str) -> None:
    """Faults are not collected one by one: meanwhile nobody else would be served."""
    path, param, value = HOSTILE[name]
    response = await refused_at_once(stack, path, json.dumps(GOOD | {param: value()}))
    assert error_of(response)[:2] == (400, param)


# What fits into the largest body, of what takes long to read or to walk through.
FULL = {
    "lists": (TEXT, '{"metadata":[%s[]]}', "[],"),
    "objects": (CHAT, '{"chat_template_kwargs":{"a":[%s{}]}}', "{},"),
    "texts": (CHAT, '{"chat_template_kwargs":{"a":[%s""]}}', '"",'),
    "names": (CHAT, '{%s"z":1}', '"a":1,'),
    "tokens": (TEXT, '{"prompt":[%s1]}', "1,"),
    "options of a stream": (TEXT, '{"stream_options":{%s"z":1}}', '"a":1,'),
}


@pytest.mark.parametrize("name", FULL)
async def test_the_fullest_bodies_are_refused_at_once(stack: Stack, name: str) -> None:
    """Before they are read: nobody is served meanwhile, in whichever thread that is."""
    path, around, piece = FULL[name]
    times = (stack.router.state.settings.max_body_bytes - len(around)) // len(piece)
    response = await refused_at_once(stack, path, around % (piece * times))
    assert error_of(response)[:2] == (400, None)
    assert "the body holds more than" in response.text


async def refused_at_once(stack: Stack, path: str, body: str) -> Any:
    """The response, in time of this process, not of the machine, which may be busy with others."""
    content = body.encode()
    # Without the collector's way through what other tests have left in memory.
    gc.collect()
    gc.freeze()
    started_s = time.process_time()
    response = await stack.router.http.post(path, content=content, headers=JSON)
    taken_s = time.process_time() - started_s
    gc.unfreeze()
    assert taken_s < 0.3
    assert len(response.text) < 500
    return response


async def test_unknown_fields_are_counted_and_more_than_anybody_has_refused(stack: Stack) -> None:
    stack.worker.script = saying("ok")
    response = await stack.router.http.post(CHAT, json=GOOD | {f"x{at}": 1 for at in range(200)})
    assert response.status_code == 200
    count = "outrider_router_ignored_fields_total"
    assert await stack.router.metric(count, field="other") == 200
    many = {f"x{at}": 1 for at in range(50_000)}
    for body in (GOOD | many, GOOD | {"stream": True, "stream_options": many}):
        response = await refused_at_once(stack, CHAT, json.dumps(body))
        assert response.status_code == 400
        assert " are more than the " in response.text


async def test_prompts_of_many_tokens_are_refused_by_their_number_alone(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks through them, and what is not repeated in the answer is not decoded."""
    decoded: list[int] = []
    decode = ModelTokenizer.decode

    def spied(tokenizer: ModelTokenizer, ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return decode(tokenizer, ids)

    monkeypatch.setattr(ModelTokenizer, "decode", spied)
    stack.worker.script = saying("ok")
    asked = {"model": "tiny", "max_tokens": 1}
    long = await refused_at_once(stack, TEXT, json.dumps(asked | {"prompt": [5] * 1_000_000}))
    assert error_of(long) == (400, "prompt", "context_length_exceeded")
    for echo in (False, True):
        body = asked | {"prompt": [5, 6, 7], "echo": echo}
        assert (await stack.router.http.post(TEXT, json=body)).status_code == 200
    assert decoded == [3]


def nested(depth: int) -> str:
    """JSON text of objects in objects."""
    return '{"a":' * depth + "1" + "}" * depth


DEEP = {
    "response_format": '{"type":"json_schema","json_schema":{"name":"x","schema":%s}}',
    "guided_json": "%s",
    "guided_regex": "%s",
    "tools": '[{"type":"function","function":{"name":"x","parameters":%s}}]',
    "tool_choice": "%s",
    "chat_template_kwargs": "%s",
    "messages": '[{"role":"user","content":%s}]',
    "prediction": '{"type":"content","content":%s}',
    "logit_bias": "%s",
    "metadata": "%s",
    "stop": "[%s]",
}


async def test_arguments_of_earlier_calls_however_deep_are_no_fault() -> None:
    """They come as text, which templates want as values."""
    async with (
        FakeWorker(script=saying("ok"), chat_template=tool_models.HERMES) as worker,
        running_router(worker) as router,
    ):
        for depth in (10, 900, 960, 980, 100_000):
            call = {"function": {"name": "x", "arguments": nested(depth)}}
            said = {"role": "assistant", "tool_calls": [call]}
            body = GOOD | {"messages": [*GOOD["messages"], said]}
            assert (await router.http.post(CHAT, json=body)).status_code in (200, 400), depth


@pytest.mark.parametrize("field", DEEP)
async def test_values_however_deep_are_no_fault_of_the_routers(offering: Stack, field: str) -> None:
    """What the reader of JSON takes may still be too deep for who writes it or looks through it."""
    offering.worker.script = saying("ok")
    for depth in (10, 300, 700, 900, 950, 980, 100_000):
        others = {name: value for name, value in GOOD.items() if name != field}
        body = json.dumps(others)[:-1] + f', "{field}": {DEEP[field] % nested(depth)}}}'
        response = await offering.router.http.post(CHAT, content=body, headers=JSON)
        assert response.status_code in (200, 400), depth
        assert len(response.text) < 2000


async def in_flight(router: RunningRouter, worker: FakeWorker, count: int) -> list[Any]:
    """Start requests and wait until the worker has them."""
    tasks = [asyncio.create_task(router.http.post(CHAT, json=GOOD)) for _ in range(count)]
    await until(lambda: len(worker.active) >= count, 3, "the worker has them")
    return tasks


async def test_too_much_in_flight_is_429_at_once() -> None:
    """F17: n counts n places, refusals are immediate, and it recovers."""
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, max_in_flight=3, max_waiting=0) as router,
    ):
        tasks = await in_flight(router, worker, 2)
        refused = await router.http.post(CHAT, json=GOOD | {"n": 2})
        assert not any(task.done() for task in tasks), "refused at once, not queued"
        assert refused.headers["retry-after"] == "1"
        assert error_of(refused) == (429, None, "rate_limit_exceeded")
        assert refused.json()["error"]["type"] == "rate_limit_exceeded"
        tokenize = {"model": "tiny", "prompt": "a"}
        assert (await router.http.post("/tokenize", json=tokenize)).status_code == 200
        tasks.append(asyncio.create_task(router.http.post(CHAT, json=GOOD)))
        await until(lambda: len(worker.active) == 3, 2, "the last place is taken")
        assert (await router.http.post("/tokenize", json=tokenize)).status_code == 429
        detokenize = {"model": "tiny", "tokens": [5]}
        assert (await router.http.post("/detokenize", json=detokenize)).status_code == 429
        worker.resume.set()
        assert [(await task).status_code for task in tasks] == [200] * 3
        assert (await router.http.post(CHAT, json=GOOD | {"n": 2})).status_code == 200
        assert await router.metric("outrider_router_requests_total", outcome="overloaded") == 1
        assert router.settled()


async def test_prompt_tokens_in_flight_are_limited() -> None:
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, max_prompt_tokens_in_flight=30) as router,
    ):
        (task,) = await in_flight(router, worker, 1)
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 429
        worker.resume.set()
        assert (await task).status_code == 200
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 200


async def test_tokenizing_is_bounded_and_off_the_event_loop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    spell = ModelTokenizer.token_text

    def spied(tokenizer: ModelTokenizer, token_id: int) -> str | None:
        threads.append(threading.current_thread().name)
        return spell(tokenizer, token_id)

    monkeypatch.setattr(ModelTokenizer, "token_text", spied)
    http, ids = stack.router.http, tiny.encode("Paris")
    body = {"model": "tiny", "prompt": "Paris"}
    plain = (await http.post("/tokenize", json=body)).json()
    assert (plain["tokens"], plain["token_strs"], threads) == (ids, None, [])
    spelled = (await http.post("/tokenize", json=body | {"return_token_strs": True})).json()
    assert len(spelled["token_strs"]) == len(threads) == len(ids)
    assert all(name.startswith("text") for name in threads)
    long: list[tuple[str, str, Any]] = [
        ("/tokenize", "prompt", "x" * 100_000),
        ("/tokenize", "messages", [{"role": "user", "content": "x" * 100_000}]),
        ("/detokenize", "tokens", [5] * 513),
    ]
    for path, param, value in long:
        response = await http.post(path, json={"model": "tiny", param: value})
        assert error_of(response) == (400, param, "context_length_exceeded")
