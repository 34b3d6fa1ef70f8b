"""Choices whose worker is lost while no other one is ready."""

import asyncio
import json
import time
from typing import Any

import pytest

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, resuming, saying
from tests.support.router_stack import RunningRouter, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
TEXT = "The quick brown fox jumps over the lazy dog, and – über alles – goes on."


def asking(**options: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **options}


async def error_after_loss(
    router: RunningRouter, worker: FakeWorker, deltas: int, **options: Any
) -> tuple[dict[str, Any], float]:
    """The error that ends a stream whose worker dies behind so many events, and the wait for it."""
    body, seen, lost_s = asking(stream=True, seed=1, **options), 0, 0.0
    async with asyncio.timeout(20), router.http.stream("POST", CHAT, json=body) as response:
        async for line in response.aiter_lines():
            if '"error"' in line:
                error: dict[str, Any] = json.loads(line.removeprefix("data: "))["error"]
                return error, time.monotonic() - lost_s
            seen += line.startswith("data: ")
            if seen == deltas and not lost_s:
                lost_s = time.monotonic()
                await worker.die()
    raise AssertionError("the stream ended cleanly")


async def test_all_choices_look_at_once() -> None:
    """F09: eight choices wait for a worker no longer than one."""
    async with (
        FakeWorker(script=resuming(TEXT, 1, gap_s=0.05)) as worker,
        running_router(worker, resume_wait_s=2.0) as router,
    ):
        _, waited_s = await error_after_loss(router, worker, 40, n=8, max_tokens=200)
        # One after the other would take sixteen seconds.
        assert 1.9 < waited_s < 10.0


async def test_the_time_limit_holds_while_a_worker_is_looked_for() -> None:
    async with (
        FakeWorker(script=resuming(TEXT, 1, gap_s=0.05)) as worker,
        running_router(worker, request_limit_s=1.0, resume_wait_s=30.0) as router,
    ):
        error, waited_s = await error_after_loss(router, worker, 5, max_tokens=100)
        assert error["code"] == "timeout"
        assert waited_s < 15.0


async def test_behind_the_time_limit_nothing_is_sent_again() -> None:
    """The worker comes back, and would never answer."""
    async with (
        FakeWorker(script=resuming(TEXT, 1, gap_s=0.05)) as worker,
        running_router(worker, request_limit_s=1.0, resume_wait_s=30.0) as router,
    ):
        error, _ = await error_after_loss(router, worker, 5, max_tokens=100)
        assert error["code"] == "timeout"
        sent = len(worker.submitted)
        worker.script = Script([tiny.encode("x")], stall_after=0)
        await worker.start()
        await router.until_ready()
        await asyncio.sleep(0.3)
        assert len(worker.submitted) == sent
        assert router.settled()


async def test_answers_that_the_router_ends_count_as_successes() -> None:
    """F10: failures in a row open a breaker, not those with good answers between them."""
    faults = iter([True, False] * 4)

    def script(_submit: worker_pb2.Submit) -> Script:
        if next(faults):
            return Script([], failure=worker_pb2.FAILURE_CODE_INTERNAL)
        return saying("abc STOP and much more text", 1, gap_s=0.02)

    async with FakeWorker(script=script) as worker, running_router(worker) as router:
        [there] = router.state.registry.workers.values()
        statuses = []
        for _ in range(8):
            answer = await router.http.post(CHAT, json=asking(stop=["STOP"]))
            statuses.append(answer.status_code)
            # Failures of one moment count once.
            await asyncio.sleep(0.3)
            assert not there.breaker.is_open(router.state.clock.monotonic_s())
        assert statuses == [500, 200] * 4
