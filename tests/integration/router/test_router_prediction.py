"""`prediction` through the official client: what the worker gets of it, and what usage tells."""

from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

import openai
import pytest
import pytest_asyncio

from outrider_router.openai.prediction import OPTION
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, saying
from tests.support.router_stack import RunningRouter, Stack, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The capital of France is Paris."
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
PARTS = [{"type": "text", "text": TEXT[:9]}, {"type": "text", "text": TEXT[9:]}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_stack() -> AsyncIterator[Stack]:
    async with FakeWorker(options=(OPTION,)) as worker, running_router(worker) as router:
        yield Stack(worker, router)


async def ask(router: RunningRouter, content: Any, **options: Any) -> Any:
    return await router.client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        prediction={"type": "content", "content": content},
        **options,
    )


def details(usage: Any) -> tuple[int, int]:
    found = usage.completion_tokens_details
    return found.accepted_prediction_tokens, found.rejected_prediction_tokens


@pytest.mark.parametrize("content", [TEXT, PARTS], ids=["text", "parts"])
async def test_the_prediction_reaches_the_worker_as_tokens(stack: Stack, content: Any) -> None:
    """For each choice, and nothing else of the request changes."""
    stack.worker.script = saying(TEXT, 3)
    create: Any = stack.router.client.chat.completions.create
    plain = await create(model="tiny", messages=MESSAGES)
    answer = await ask(stack.router, content, n=2)
    without, *choices = stack.worker.submitted
    assert [list(each.prediction_ids) for each in choices] == [tiny.encode(TEXT)] * 2
    assert not without.prediction_ids
    assert all(each.prompt_ids == without.prompt_ids for each in choices)
    assert answer.choices[0].message.content == plain.choices[0].message.content == TEXT
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens
    assert details(plain.usage) == (0, 0)


async def test_control_tokens_in_a_prediction_are_text(stack: Stack) -> None:
    stack.worker.script = saying(TEXT)
    await ask(stack.router, "x<|im_end|>\n<|im_start|>y")
    (submit,) = stack.worker.submitted
    assert tiny.decode(submit.prediction_ids) == "x<|im_end|>\n<|im_start|>y"
    assert not set(submit.prediction_ids) & {0, 1, 2, 3}


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_tells_what_was_accepted_and_rejected(stack: Stack, streamed: bool) -> None:
    """Of all choices together; completion tokens are those delivered."""
    script = saying(TEXT, 4)
    accepted = accumulate(len(ids) - 1 for ids in script.rounds)
    predicted = [(right, 2 * n) for n, right in enumerate(accepted, 1)]
    stack.worker.script = Script(script.rounds, predicted=predicted)
    options: dict[str, Any] = {"n": 2, "stream": streamed}
    if streamed:
        options["stream_options"] = {"include_usage": True}
    answer = await ask(stack.router, TEXT, **options)
    usage = [chunk.usage async for chunk in answer][-1] if streamed else answer.usage
    assert details(usage) == (2 * predicted[-1][0], 2 * predicted[-1][1])
    assert usage.completion_tokens == 2 * len(tiny.encode(TEXT))


async def test_what_a_stop_string_cuts_off_was_not_accepted(stack: Stack) -> None:
    """The stop string ends the answer inside of the only round, before the worker's end comes."""
    ids = tiny.encode(TEXT)
    stack.worker.script = Script([ids], predicted=[(len(ids) - 1, 4)])
    answer = await ask(stack.router, TEXT, stop=" capital")
    kept = answer.usage.completion_tokens
    assert 0 < kept < len(ids) - 1
    assert details(answer.usage) == (kept, 4 + len(ids) - 1 - kept)


async def test_a_null_or_empty_prediction_is_none(stack: Stack) -> None:
    stack.worker.script = saying(TEXT)
    await ask(stack.router, "")
    body = {"model": "tiny", "messages": MESSAGES, "prediction": None}
    assert (await stack.router.http.post("/v1/chat/completions", json=body)).status_code == 200
    assert [len(each.prediction_ids) for each in stack.worker.submitted] == [0, 0]


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ([], "prediction"),
        ({"content": "x"}, "prediction.type"),
        ({"type": "diff", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": []}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
        ({"type": "content", "content": [{"type": "file"}]}, "prediction.content[0].type"),
        ({"type": "content", "content": "word " * 600}, "prediction"),
        ({"type": "content", "content": "x" * 100_000}, "prediction"),
    ],
)
async def test_what_is_wrong_is_named(stack: Stack, prediction: Any, param: str) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "prediction": prediction}
    response = await stack.router.http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
    assert not stack.worker.submitted


async def test_workers_that_take_none_refuse_it_by_name() -> None:
    async with FakeWorker() as worker, running_router(worker) as router:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(router, TEXT)
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "prediction")
