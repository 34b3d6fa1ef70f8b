"""The worker behind real gRPC: streams, refusals, load, drain, what it says of itself."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator

import grpc
import pytest

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.service import Worker
from tests.support.engines import greedy_text, prompts
from tests.support.workers import asset, attached, describe, running_worker

PROMPTS = prompts(6)
# The tiny model soon says its end-of-sequence token; these requests go on.
ENDLESS = {"ignore_eos": True}


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async with running_worker() as running:
        yield running


async def test_a_pool_smaller_than_the_context_is_the_context() -> None:
    """What can be asked for is told beforehand, and refused by nobody later."""
    async with running_worker(kv_gib=0.0001) as worker:
        told = await describe(worker.server.port)
        assert told.limits.max_context_tokens == told.limits.kv_capacity_tokens < 512
        async with attached(worker.server.port) as router:
            room = told.limits.max_context_tokens - 4
            await router.submit("r", [5, 6, 7, 8], max_tokens=room)
            end = await router.end("r")
    assert end.WhichOneof("end") == "finish"


async def test_tokens_come_back_for_every_request(worker: Worker) -> None:
    async with attached(worker.server.port) as router:
        for number, prompt in enumerate(PROMPTS):
            await router.submit(f"r{number}", prompt, max_tokens=24)
        for number, prompt in enumerate(PROMPTS):
            end = await router.end(f"r{number}")
            assert router.ids[f"r{number}"] == greedy_text(prompt, 24)
            assert end.finish.reason == wire.FINISH_REASON_LENGTH
        # One message per round for all requests, not one per request and token.
        assert router.tokens_messages <= 24 + 2 * len(PROMPTS)
        assert router.pongs >= 1


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt_ids": []}, wire.FAILURE_CODE_INVALID, "prompt_ids"),
        ({"prompt_ids": [9999]}, wire.FAILURE_CODE_INVALID, "prompt_ids"),
        ({"sampling": {"temperature": float("nan")}}, wire.FAILURE_CODE_INVALID, "temperature"),
        ({"sampling": {"temperature": -1}}, wire.FAILURE_CODE_INVALID, "temperature"),
        ({"sampling": {"top_p": 1.5}}, wire.FAILURE_CODE_INVALID, "top_p"),
        ({"resumed_ids": [5] * 16}, wire.FAILURE_CODE_INVALID, "max_tokens"),
        ({"prompt_ids": [5] * 600}, wire.FAILURE_CODE_TOO_LONG, "prompt_ids"),
        ({"sampling": {"min_p": 1.1}}, wire.FAILURE_CODE_INVALID, "min_p"),
        ({"logprobs": {"top_logprobs": 21}}, wire.FAILURE_CODE_INVALID, "top_logprobs"),
        ({"adapter": "lora"}, wire.FAILURE_CODE_UNSUPPORTED, "adapter"),
        ({"speculation": {"drafter": "eagle"}}, wire.FAILURE_CODE_INVALID, "speculation.drafter"),
        ({"speculation": {"drafter": "predicted"}}, wire.FAILURE_CODE_INVALID, "prediction"),
    ],
)
async def test_what_is_wrong_or_unsupported_is_named(
    worker: Worker, fields: dict[str, object], code: int, param: str
) -> None:
    async with attached(worker.server.port) as router:
        prompt = fields.pop("prompt_ids", PROMPTS[0])
        await router.submit("bad", prompt, **fields)  # type: ignore[arg-type]
        failure = (await router.end("bad")).failure
        assert (failure.code, failure.param) == (code, param)
        await router.submit("good", PROMPTS[0], max_tokens=4)
        await router.end("good")
        assert router.ids["good"] == greedy_text(PROMPTS[0], 4)


async def test_options_reach_every_token(worker: Worker) -> None:
    """A17, L4: a bias of 100 decides each token, a bad word none; one logprob for each."""
    everywhere = {"logit_bias": [{"token_id": 65, "bias": 100}], "max_tokens": 12}
    nowhere = everywhere | {"bad_words": [{"token_ids": [65]}]}
    async with attached(worker.server.port) as router:
        await router.submit("on", PROMPTS[0], sampling=everywhere, logprobs={"top_logprobs": 2})
        await router.submit("off", PROMPTS[0], sampling=nowhere | ENDLESS)
        end = await router.end("on")
        await router.end("off")
    assert router.ids["on"] == [65] * 12
    assert len(router.ids["off"]) == 12
    assert 65 not in router.ids["off"]
    assert len(end.logprobs) == len(end.token_ids) > 0
    # Of the target's own law: the bias does not show.
    assert all(entry.logprob < entry.top_logprobs[0] < 0 for entry in end.logprobs)
    assert all(65 not in entry.top_ids for entry in end.logprobs)


async def test_cancel_and_detach_free_the_worker(worker: Worker) -> None:
    async with attached(worker.server.port) as router:
        await router.submit("long", PROMPTS[0], sampling=ENDLESS | {"max_tokens": 450})
        await router.submit("left", PROMPTS[1], sampling=ENDLESS | {"max_tokens": 450})
        await asyncio.sleep(0.1)
        await router.cancel("long")
        end = await router.end("long")
        assert end.finish.reason == wire.FINISH_REASON_CANCELLED
        assert worker.replica.kv_used_tokens() > 0
    async with asyncio.timeout(5):
        while not worker.engine.idle:
            await asyncio.sleep(0.01)
    assert worker.replica.kv_used_tokens() == 0


async def test_a_prefix_that_was_just_dropped_is_right_when_it_comes_again(worker: Worker) -> None:
    """F20: at whatever moment it was dropped, the same prompt and the next turn are answered."""
    async with attached(worker.server.port) as router:
        for number in range(63):
            dropped, again, turn = f"dropped-{number}", f"again-{number}", f"turn-{number}"
            await router.submit(dropped, PROMPTS[0], sampling=ENDLESS | {"max_tokens": 450})
            await asyncio.sleep(number % 21 / 1000)
            await router.cancel(dropped)
            await router.submit(again, PROMPTS[0], max_tokens=8)
            next_turn = (*PROMPTS[0], *router.ids.get(dropped, ())[:4])
            await router.submit(turn, next_turn, max_tokens=8)
            assert (await router.end(dropped)).finish.reason == wire.FINISH_REASON_CANCELLED
            await asyncio.gather(router.end(again), router.end(turn))
            assert router.ids[again] == greedy_text(PROMPTS[0], 8)
            assert router.ids[turn] == greedy_text(next_turn, 8)
    async with asyncio.timeout(5):
        while not worker.engine.idle:
            await asyncio.sleep(0.01)
    assert worker.replica.kv_used_tokens() == 0


async def test_two_routers_may_use_the_same_ids(worker: Worker) -> None:
    port = worker.server.port
    async with attached(port) as first, attached(port) as second:
        await first.submit("same", PROMPTS[0])
        await second.submit("same", PROMPTS[1])
        await asyncio.gather(first.end("same"), second.end("same"))
        assert first.ids["same"] == greedy_text(PROMPTS[0], 16)
        assert second.ids["same"] == greedy_text(PROMPTS[1], 16)


async def test_describe_tells_what_it_is(worker: Worker) -> None:
    told = await describe(worker.server.port)
    assert told.model == "tiny"
    assert told.ready
    assert told.vocab_size == 259
    assert set(told.eos_token_ids) == {0, 2}
    assert [drafter.name for drafter in told.drafters] == ["ngram", "predicted"]
    assert told.limits.max_context_tokens == 512
    assert told.load.kv_capacity_tokens == told.limits.kv_capacity_tokens > 0
    assert "<|im_start|>" in told.chat_template
    assert {"min_p", "logit_bias", "bad_words", "logprobs"} <= set(told.supported_options)
    tokenizer = await asset(worker.server.port, wire.ASSET_KIND_TOKENIZER)
    assert json.loads(tokenizer)["model"]["type"] == "BPE"


async def test_assets_are_named_by_kind_only(worker: Worker) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asset(worker.server.port, wire.ASSET_KIND_UNSPECIFIED)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_every_call_needs_the_token(worker: Worker) -> None:
    for token in (None, "wrong"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await describe(worker.server.port, token)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_draining_finishes_what_runs_and_refuses_the_rest(worker: Worker) -> None:
    """F15: SIGTERM's path: running requests end by themselves, new ones are sent elsewhere."""
    async with attached(worker.server.port) as router:
        await router.submit("running", PROMPTS[0], sampling=ENDLESS | {"max_tokens": 200})
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(worker.stop(drain_limit_s=20.0))
        await asyncio.sleep(0.02)
        await router.submit("late", PROMPTS[1])
        late = await router.end("late")
        assert late.failure.code == wire.FAILURE_CODE_UNAVAILABLE
        await router.end("running")
        assert router.ids["running"] == greedy_text(PROMPTS[0], 200)
        await stopping


async def test_past_the_drain_limit_requests_end_with_an_error(worker: Worker) -> None:
    async with attached(worker.server.port) as router:
        await router.submit("running", PROMPTS[0], sampling=ENDLESS | {"max_tokens": 450})
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(worker.stop(drain_limit_s=0.0))
        end = await router.end("running")
        assert end.failure.code == wire.FAILURE_CODE_UNAVAILABLE
        await stopping


async def test_metrics_are_served_and_equal_what_was_done(worker: Worker) -> None:
    async with attached(worker.server.port) as router:
        await router.submit("one", PROMPTS[0], max_tokens=9)
        await router.end("one")
    url = f"http://127.0.0.1:{worker.metrics_server.port}/metrics"

    def scrape() -> str:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())

    text = await asyncio.to_thread(scrape)
    assert "outrider_worker_generation_tokens_total 9.0" in text
    assert f"outrider_worker_prompt_tokens_total {len(PROMPTS[0])}.0" in text
    assert 'outrider_worker_requests_total{outcome="length"} 1.0' in text
    assert 'outrider_worker_rounds_total{mode="in_step"} 8.0' in text
    assert "outrider_worker_plan_version 0.0" in text
    assert "outrider_worker_guard_trips_total 0.0" in text
    assert "_created" not in text


async def test_a_silent_router_is_cut_off(worker: Worker) -> None:
    """F04: nothing heard for five seconds: the stream ends, and says why."""
    async with attached(worker.server.port) as router:
        router.stop_beating()
        async with asyncio.timeout(10):
            await asyncio.wait(router.reading)
        (reader,) = router.reading
        failure = reader.exception()
        assert isinstance(failure, grpc.aio.AioRpcError)
        assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_id_in_use_ends_both_for_they_cannot_be_told_apart(worker: Worker) -> None:
    async with attached(worker.server.port) as router:
        await router.submit("same", PROMPTS[0], sampling=ENDLESS | {"max_tokens": 450})
        await router.submit("same", PROMPTS[1])
        end = await router.end("same")
        assert (end.failure.code, end.failure.param) == (wire.FAILURE_CODE_INVALID, "request_id")


async def test_a_failed_engine_is_not_ready_and_tells_whoever_waits_for_it() -> None:
    failed = asyncio.Event()
    async with running_worker(on_failure=failed.set) as broken:
        broken.engine.inbox.put("no command")  # type: ignore[arg-type]
        broken.engine._parts.scheduler.admit = None  # type: ignore[method-assign, assignment]
        async with asyncio.timeout(5):
            await failed.wait()
        assert broken.replica.not_ready_reason() == "the engine has failed"
        async with attached(broken.server.port) as router:
            await router.submit("late", PROMPTS[0])
            end = await router.end("late")
            assert end.failure.code == wire.FAILURE_CODE_UNAVAILABLE
