"""What can never be served is told so at once, with the field's name, and not put off."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from outrider_router.settings import RouterSettings
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import RunningRouter, Stack, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MEANT = {"Authorization": "Bearer k"}


def key_file(folder: Path, **limits: Any) -> Path:
    """A file with the key `k`."""
    path = folder / "keys.json"
    key = {"name": "k", "sha256": hashlib.sha256(b"k").hexdigest(), **limits}
    path.write_text(json.dumps({"keys": [key]}))
    return path


def fault(response: Any) -> tuple[int, str | None]:
    assert "retry-after" not in response.headers or response.status_code in (429, 503)
    return response.status_code, response.json()["error"]["param"]


async def ended_invalid(router: RunningRouter) -> float:
    return await router.metric("outrider_router_requests_total", outcome="invalid")


async def test_more_choices_than_the_router_has_places_are_no_matter_of_waiting() -> None:
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, max_in_flight=2) as router,
    ):
        many = {"model": "tiny", "prompt": ["a", "b", "c"]}
        assert fault(await router.http.post(CHAT, json=GOOD | {"n": 3})) == (400, "n")
        assert fault(await router.http.post(TEXT, json=many)) == (400, "prompt")
        assert await ended_invalid(router) == 2
        assert (await router.http.post(CHAT, json=GOOD | {"n": 2})).status_code == 200


async def test_nor_are_more_than_a_key_has(tmp_path: Path) -> None:
    path = key_file(tmp_path, concurrent=1)
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, api_keys_file=path) as router,
    ):
        refused = await router.http.post(CHAT, json=GOOD | {"n": 2}, headers=MEANT)
        assert fault(refused) == (400, "n")
        assert "at most 1 choices" in refused.json()["error"]["message"]
        assert (await router.http.post(CHAT, json=GOOD, headers=MEANT)).status_code == 200


async def test_a_router_that_offers_more_choices_than_places_does_not_start() -> None:
    with pytest.raises(ValidationError, match=r"MAX_CHOICES \(3\).*MAX_IN_FLIGHT \(2\)"):
        RouterSettings(max_choices=3, max_in_flight=2)
    assert RouterSettings(max_in_flight=2).max_in_flight == 2, "the default gives way"


async def test_prompts_count_as_sent_once_they_are() -> None:
    counted = "outrider_router_prompt_tokens_total"
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, max_prompt_tokens_in_flight=1) as router,
    ):
        task = asyncio.create_task(router.http.post(CHAT, json=GOOD))
        await until(lambda: worker.active, 3, "the first is there")
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 429
        assert await router.metric(counted) == 0
        worker.resume.set()
        used = (await task).json()["usage"]["prompt_tokens"]
        assert await router.metric(counted) == used == len(worker.submitted[0].prompt_ids)
        both = {"model": "tiny", "prompt": ["ab", "cde"], "n": 2}
        used += (await router.http.post(TEXT, json=both)).json()["usage"]["prompt_tokens"]
        assert await router.metric(counted) == used, "each prompt once"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_tokenizing_counts_among_a_keys_requests(tmp_path: Path, path: str) -> None:
    body = {"model": "tiny", "prompt": "a", "tokens": [5]}
    file = key_file(tmp_path, concurrent=1, requests_per_minute=3)
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, api_keys_file=file) as router,
    ):
        first = await router.http.post(path, json=body, headers=MEANT)
        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "2")
        task = asyncio.create_task(router.http.post(CHAT, json=GOOD, headers=MEANT))
        await until(lambda: worker.active, 3, "the key's place is taken")
        busy = await router.http.post(path, json=body, headers=MEANT)
        assert "1 of the key's 1 places" in busy.json()["error"]["message"]
        worker.resume.set()
        assert (await task).status_code == 200
        assert (await router.http.post(path, json=body, headers=MEANT)).status_code == 200
        spent = await router.http.post(path, json=body, headers=MEANT)
        assert spent.status_code == 429
        assert int(spent.headers["retry-after-ms"]) > 10_000


async def test_nothing_is_tokenized_while_the_router_stops() -> None:
    async with FakeWorker(script=saying("ok")) as worker, running_router(worker) as router:
        router.state.draining = True
        for path, param, value in (("/tokenize", "prompt", "a"), ("/detokenize", "tokens", [5])):
            refused = await router.http.post(path, json={"model": "tiny", param: value})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"


def truncating(prompt: Any, keep: int, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "truncate_prompt_tokens": keep, **more}


async def test_a_prompt_is_cut_if_it_is_not_out_of_all_proportion(stack: Stack) -> None:
    """Its whole text is encoded to find its end: others would wait for that."""
    stack.worker.script = saying("ok")
    http = stack.router.http
    assert (await http.post(TEXT, json=truncating("ab " * 10_000, 4))).status_code == 200
    for prompt in ("ab " * 20_000, "ab" * 500_000, [5] * 40_000):
        refused = await http.post(TEXT, json=truncating(prompt, 4))
        assert fault(refused) == (400, "prompt")
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert "not cut if it has more than 32768" in refused.json()["error"]["message"]


async def test_nothing_is_left_of_a_prompt_cut_to_nothing(stack: Stack) -> None:
    for path, body in ((TEXT, {"model": "tiny", "prompt": "ab"}), (CHAT, GOOD)):
        refused = await stack.router.http.post(path, json=body | {"truncate_prompt_tokens": 0})
        assert fault(refused) == (400, "truncate_prompt_tokens")


async def test_what_is_echoed_is_what_the_model_was_given(stack: Stack) -> None:
    stack.worker.script = saying("ok")
    prompt = "one two three"
    for asked in (prompt, tiny.encode(prompt)):
        body = truncating(asked, 3, echo=True)
        text = (await stack.router.http.post(TEXT, json=body)).json()["choices"][0]["text"]
        end = tiny.decode(tiny.encode(prompt)[-3:])
        assert text == end + "ok"
        assert end != prompt
    body = truncating(prompt, 100, echo=True)
    whole = (await stack.router.http.post(TEXT, json=body)).json()["choices"][0]["text"]
    assert whole == prompt + "ok"


async def test_predictions_are_bounded_before_they_are_encoded_whole(offering: Stack) -> None:
    for content in ("ab " * 2_000, "ab" * 500_000):
        body = GOOD | {"prediction": {"type": "content", "content": content}}
        refused = await offering.router.http.post(CHAT, json=body)
        assert fault(refused) == (400, "prediction")
        assert "longer than 512 tokens" in refused.json()["error"]["message"]
