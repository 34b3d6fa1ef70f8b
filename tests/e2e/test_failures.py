"""A service is lost in the middle of the work."""

import asyncio
import signal
import time
import urllib.request
from collections.abc import Iterator

import openai as openai_sdk
import pytest

from tests.support.chat import QUESTIONS, client, stream, stream_all
from tests.support.net import wait_until
from tests.support.processes import Stack

pytestmark = pytest.mark.e2e
EIGHT = QUESTIONS[3:11]
ENDLESS = {"extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack("--threads", "1") as running:
        yield running


def _metric(stack: Stack, name: str) -> float:
    url = f"http://127.0.0.1:{stack.worker_metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as response:
        lines = response.read().decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"outrider_worker_{name} "))
    return float(value)


def _plans_applied(stack: Stack) -> float:
    return _metric(stack, "plans_applied_total")


async def test_a_planner_killed_or_frozen_changes_no_stream(stack: Stack) -> None:
    """Z08: no stream stalls or differs; a new planner's plans are in force within 5 s."""
    async with client(stack) as openai:
        began_s = time.monotonic()
        before = await stream_all(openai, EIGHT, max_tokens=24, **ENDLESS)
        plain_s = time.monotonic() - began_s
        stopped = stack.kill("planner", signal.SIGSTOP)
        began_s = time.monotonic()
        assert await stream_all(openai, EIGHT, max_tokens=24, **ENDLESS) == before
        frozen_s = time.monotonic() - began_s
        assert stack.kill("planner", signal.SIGCONT) == stopped
        # Seconds, where waiting for a planner that says nothing would be for ever.
        assert frozen_s < 3 * plain_s + 2
        running = asyncio.create_task(stream_all(openai, EIGHT, max_tokens=24, **ENDLESS))
        await asyncio.sleep(0.7)
        frozen = stack.kill("planner", signal.SIGSTOP)
        await asyncio.sleep(0.4)
        assert not running.done(), "the planner is to be lost in the middle"
        applied = await asyncio.to_thread(_plans_applied, stack)
        killed = stack.kill("planner", signal.SIGKILL)
        assert frozen == killed
        assert await running == before
        await asyncio.to_thread(stack.wait_restarted, "planner", killed, 20)
        # Five seconds from when the new planner answers; it takes a moment to start.
        await asyncio.to_thread(wait_until, lambda: _answers(stack), 20, "the planner's answer")
        up_s = time.monotonic()
        while await asyncio.to_thread(_plans_applied, stack) == applied:
            assert time.monotonic() - up_s < 5, "no plan within 5 s of the planner's start"
            await asyncio.sleep(0.1)
        assert await stream(openai, EIGHT[0], 24, **ENDLESS) == before[0]


def _answers(stack: Stack) -> bool:
    try:
        url = f"http://127.0.0.1:{stack.planner_http_port}/health"
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


async def test_a_killed_worker_is_an_error_never_a_hang(stack: Stack) -> None:
    async with client(stack) as openai:
        running = [asyncio.create_task(stream(openai, q, 400, **ENDLESS)) for q in EIGHT[:4]]
        await asyncio.sleep(2.0)
        assert not any(task.done() for task in running)
        killed = stack.kill("worker-0", signal.SIGKILL)
        async with asyncio.timeout(15):
            ends = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(end, openai_sdk.APIError) for end in ends), ends
        with pytest.raises(openai_sdk.APIStatusError) as refused:
            await stream(openai, EIGHT[0], 4)
        assert refused.value.status_code == 503
        # The supervisor brings the worker back, and the router finds it by itself.
        await asyncio.to_thread(stack.wait_restarted, "worker-0", killed)
        await _answers_again(stack, limit_s=90)


async def _answers_again(stack: Stack, limit_s: float) -> None:
    """Every refusal on the way there is a 503: retry elsewhere or later."""
    statuses: set[int] = set()
    async with asyncio.timeout(limit_s), client(stack) as openai:
        while True:
            try:
                assert await stream(openai, EIGHT[0], 4)
            except openai_sdk.APIStatusError as refused:
                statuses.add(refused.status_code)
                await asyncio.sleep(0.5)
            else:
                break
    assert statuses <= {503}
