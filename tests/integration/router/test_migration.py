"""Answers that move between workers: the client must not be able to tell."""

import asyncio
import json
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import openai
import pytest

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, resuming, saying
from tests.support.router_stack import RunningRouter, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
TEXT = "The quick brown fox jumps over the lazy dog, and – über alles – goes on."
IDS = tiny.encode(TEXT)


def asking(content: str = "hi", **options: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **options}


async def events_of(router: RunningRouter, **options: Any) -> list[Any]:
    """A stream's events, decoded; the last is `[DONE]` where it came."""
    body = asking(stream=True, stream_options={"include_usage": True}, **options)
    async with router.http.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(events: list[Any], index: int = 0) -> str:
    chosen = [c for e in events[:-1] for c in e["choices"] if c["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in chosen)


async def both_ready(router: RunningRouter) -> None:
    workers = router.state.registry.workers.values()
    await until(lambda: not any(w.trouble for w in workers), 5, "all ready")


async def raised(call: Awaitable[Any]) -> openai.APIError:
    with pytest.raises(openai.APIError) as caught:
        await call
    return caught.value


async def test_every_cut_position_gives_the_same_text_and_usage() -> None:
    """F09, F11: the worker dies behind 0, 1, 2 … deliveries; nothing is lost or said twice."""
    armed: list[int] = []

    def script(submit: worker_pb2.Submit) -> Script:
        if not armed:
            return resuming(TEXT, 4)(submit)
        return resuming(TEXT, 3, gap_s=0.005, die_after=armed.pop())(submit)

    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        running_router(first, second) as router,
    ):
        for cut in (0, 1, 2, 7, 13):
            await both_ready(router)
            router.forget()
            first.submitted.clear()
            second.submitted.clear()
            armed.append(cut)
            events = await events_of(router, seed=7, max_tokens=len(IDS))
            assert (text_of(events), events[-1]) == (TEXT, "[DONE]")
            assert events[-2]["usage"]["completion_tokens"] == len(IDS)
            assert await moves(router) == 1
            assert await router.metric("outrider_router_requests_total", outcome="length") == 1
            assert await router.metric("outrider_router_generation_tokens_total") == len(IDS)
            await until(router.settled, 2, "settled")
            submitted = first.submitted + second.submitted
            # What a dying worker said last may be lost with it.
            assert all(list(s.resumed_ids) == IDS[: len(s.resumed_ids)] for s in submitted)
            assert max(len(s.resumed_ids) for s in submitted) <= 3 * cut
            same = {(s.seed, s.choice_index, tuple(s.prompt_ids)) for s in submitted}
            assert (len(same), len({s.request_id for s in submitted})) == (1, len(submitted))
            for worker in (first, second):
                if worker._server is None:
                    await worker.start()


async def moves(router: RunningRouter) -> float:
    """Choices sent to another worker, with tokens or before the first."""
    kinds = ("migrations", "retries")
    return sum([await router.metric(f"outrider_router_{kind}_total") for kind in kinds])


async def test_choices_move_each_for_itself() -> None:
    """One of three choices fails on its worker; the others stay where they are."""

    def script(submit: worker_pb2.Submit) -> Script:
        whole = resuming(TEXT, 2, gap_s=0.002)(submit)
        if submit.choice_index != 1 or submit.resumed_ids:
            return whole
        failure = worker_pb2.FAILURE_CODE_UNAVAILABLE
        return replace(whole, rounds=whole.rounds[:5], failure=failure)

    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        running_router(first, second) as router,
    ):
        await both_ready(router)
        events = await events_of(router, n=3, max_tokens=len(IDS))
        assert [text_of(events, index) for index in range(3)] == [TEXT] * 3
        assert events[-2]["usage"]["completion_tokens"] == 3 * len(IDS)
        counts = sorted([len(first.submitted), len(second.submitted)])
        assert counts == [1, 3]
        await until(router.settled, 2, "settled")


async def test_fifty_streams_over_two_workers_that_are_killed_in_turn() -> None:
    """F09: kill at random tokens; every text is the undisturbed one and every token counts once."""
    chance = random.Random(11)
    script = resuming(TEXT, 1, 2, 3, gap_s=0.01)
    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        running_router(first, second) as router,
    ):
        answers = []
        for wave in range(5):
            await both_ready(router)
            asked = [events_of(router, max_tokens=len(IDS), seed=wave) for _ in range(10)]
            streams = asyncio.gather(*asked)
            victim = (first, second)[wave % 2]
            await until(lambda v=victim: v.active, 2, "it has some")
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            await victim.die()
            answers += await streams
            await victim.start()
        assert [text_of(events) for events in answers] == [TEXT] * 50
        assert {events[-1] for events in answers} == {"[DONE]"}
        assert {events[-2]["usage"]["completion_tokens"] for events in answers} == {len(IDS)}
        assert await router.metric("outrider_router_migrations_total") > 5
        assert await router.metric("outrider_router_requests_total", outcome="length") == 50
        total = await router.metric("outrider_router_generation_tokens_total")
        assert total == 50 * len(IDS)
        await until(router.settled, 2, "settled")


async def test_a_request_that_kills_workers_gets_two_of_them() -> None:
    """F10: it is retried once; who comes after it is served by the worker that is left."""

    def script(submit: worker_pb2.Submit) -> Script:
        poison = "poison" in tiny.decode(submit.prompt_ids)
        return saying("ok", die_after=0) if poison else saying("ok")

    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        FakeWorker(script=script) as third,
        running_router(first, second, third) as router,
    ):
        await both_ready(router)
        assert (await router.http.post(CHAT, json=asking("poison"))).status_code == 503
        alive = [w for w in (first, second, third) if w._server is not None]
        assert len(alive) == 1
        assert (await router.http.post(CHAT, json=asking())).status_code == 200
        await alive[0].die()
        await until(lambda: router.state.trouble() is not None, 3, "none is left")
        refused = await router.http.post(CHAT, json=asking())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        await alive[0].start()
        await router.until_ready(5)
        assert (await router.http.post(CHAT, json=asking())).status_code == 200


async def test_poison_in_the_middle_of_a_text_kills_no_third_worker() -> None:
    def script(submit: worker_pb2.Submit) -> Script:
        done = len(submit.resumed_ids)
        return saying(TEXT[done:], 1, die_after=10 - done)

    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        FakeWorker(script=script) as third,
        running_router(first, second, third) as router,
    ):
        await both_ready(router)
        events = await events_of(router)
        assert events[-1]["error"]["code"] == "overloaded"
        assert sum(worker._server is not None for worker in (first, second, third)) == 1
        await until(router.settled, 2, "settled")


async def test_without_another_worker_the_stream_ends_in_an_error_soon() -> None:
    """F09, E12: never with an end that looks like success, and not for waiting's sake."""
    async with (
        FakeWorker(script=resuming(TEXT, 1, die_after=9)) as only,
        running_router(only) as router,
    ):
        started_s = asyncio.get_running_loop().time()
        events = await events_of(router)
        assert asyncio.get_running_loop().time() - started_s < 2.5
        assert "error" in events[-1]
        assert "[DONE]" not in events
        assert not any(c["finish_reason"] for e in events[:-1] for c in e["choices"])
        assert await router.metric("outrider_router_requests_total", outcome="unavailable") == 1


async def test_a_worker_that_is_back_soon_goes_on_with_its_own_streams() -> None:
    async with (
        FakeWorker(script=resuming(TEXT, 1, die_after=9)) as only,
        running_router(only, resume_wait_s=5) as router,
    ):
        stream = asyncio.create_task(events_of(router))
        await until(lambda: only._server is None, 3, "it died")
        only.script = resuming(TEXT, 5)
        await only.start()
        events = await stream
        assert (text_of(events), events[-1]) == (TEXT, "[DONE]")


async def test_tokens_of_another_life_are_dropped_and_end_the_stream_they_came_on() -> None:
    """A zombie's tokens: the address answers, but it is not the worker that was attached to."""
    script = resuming(TEXT, 1, stall_after=5)
    async with (
        FakeWorker(script=script) as zombie,
        FakeWorker(script=resuming(TEXT, 6), running_requests=5) as second,
        running_router(zombie, second) as router,
    ):
        await both_ready(router)
        stream = asyncio.create_task(events_of(router))
        await until(lambda: zombie.active, 2, "it has begun")
        await asyncio.sleep(0.1)
        zombie.incarnation = "another"
        zombie.resume.set()
        events = await stream
        assert (text_of(events), events[-1]) == (TEXT, "[DONE]")
        assert list(second.submitted[0].resumed_ids) == IDS[:5]


async def test_totals_of_predictions_add_up_over_workers() -> None:
    def script(submit: worker_pb2.Submit) -> Script:
        whole = resuming(TEXT, 4)(submit)
        if submit.resumed_ids:
            return replace(whole, predicted=[(2, 0), (4, 1)])
        failure = worker_pb2.FAILURE_CODE_UNAVAILABLE
        return replace(whole, rounds=whole.rounds[:2], predicted=[(3, 1), (5, 2)], failure=failure)

    offers: dict[str, Any] = {"script": script, "options": ("prediction_ids",)}
    async with (
        FakeWorker(**offers) as first,
        FakeWorker(**offers) as second,
        running_router(first, second) as router,
    ):
        await both_ready(router)
        prediction = {"type": "content", "content": TEXT}
        events = await events_of(router, prediction=prediction, max_tokens=len(IDS))
        details = events[-2]["usage"]["completion_tokens_details"]
        assert text_of(events) == TEXT
        assert details["accepted_prediction_tokens"] == 9
        assert details["rejected_prediction_tokens"] == 3


async def test_a_full_worker_is_tried_once_while_a_stream_looks_for_a_place() -> None:
    full = Script([], failure=worker_pb2.FAILURE_CODE_OVERLOADED)
    async with (
        FakeWorker(script=resuming(TEXT, 1, die_after=4)) as first,
        FakeWorker(script=full, running_requests=3) as second,
        FakeWorker(script=resuming(TEXT, 9), running_requests=6) as third,
        running_router(first, second, third) as router,
    ):
        await both_ready(router)
        events = await events_of(router)
        assert (text_of(events), events[-1]) == (TEXT, "[DONE]")
        assert (len(second.submitted), len(third.submitted)) == (1, 1)
