"""The loop closed over real gRPC: reports up, plans down, and what happens when one side is gone.

The planner and the worker are the real ones; both run in the test's process so that their insides
can be looked at. Validity and grace are set short: the test waits for them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from outrider_planner.assembly import PlannerProcess, start
from outrider_planner.settings import PlannerSettings
from outrider_runtime.clock import SystemClock
from outrider_worker.engine.plans import OFF, Plan
from outrider_worker.service import Worker
from tests.support.engines import greedy_text, prompts
from tests.support.net import free_ports
from tests.support.workers import TOKEN, attached, running_worker

PROMPTS = prompts(8)
LONG = {"ignore_eos": True, "max_tokens": 120}


async def _planner(port: int, policy: str = "static:4", **settings: object) -> PlannerProcess:
    (http_port,) = free_ports(1)
    values = {"validity_ms": 1000, "grace_ms": 300, "report_interval_ms": 100, **settings}
    clock = values.pop("clock", None)
    return await start(
        PlannerSettings(grpc_port=port, http_port=http_port, policy=policy, token=TOKEN, **values),  # type: ignore[arg-type]
        clock,  # type: ignore[arg-type]
    )


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


def _plan(worker: Worker) -> Plan:
    return worker.plans.in_force(time.monotonic())


@pytest.fixture
async def port() -> int:
    (free,) = free_ports(1)
    return free


@pytest.fixture
async def worker(port: int) -> AsyncIterator[Worker]:
    # Rounds take long enough for a stream to outlast validity and grace.
    async with running_worker(extra_round_s=0.04, planner=f"127.0.0.1:{port}") as running:
        yield running


async def test_plans_arrive_and_reports_change_them(worker: Worker, port: int) -> None:
    """two_stage on text that repeats itself: statistics go up, versions and budgets follow."""
    planner = await _planner(port, policy="two_stage", report_interval_ms=100)
    try:
        await _until(lambda: _plan(worker).policy == "two_stage", 5)
        first = _plan(worker).version
        async with attached(worker.server.port) as router:
            for number, prompt in enumerate(PROMPTS):
                await router.submit(f"r{number}", prompt, sampling=LONG | {"max_tokens": 40})
            for number, prompt in enumerate(PROMPTS):
                await router.end(f"r{number}", limit_s=60)
                assert router.ids[f"r{number}"] == greedy_text(prompt, 40)
        await _until(lambda: _plan(worker).version > first, 5)
    finally:
        await planner.stop()


async def test_a_lost_planner_means_off_after_the_grace_and_back_within_seconds(
    worker: Worker, port: int
) -> None:
    """Streams go on, texts are the same; the new planner's clock is an hour behind."""
    planner = await _planner(port)
    await _until(lambda: _plan(worker).policy == "static:4", 5)
    async with attached(worker.server.port) as router:
        for number, prompt in enumerate(PROMPTS):
            await router.submit(f"r{number}", prompt, sampling=LONG)
        await planner.stop()
        await _until(lambda: _plan(worker) is OFF, 4)
        assert not router.ends, "the streams are to outlast the plan"
        behind = await _planner(port, clock=_BehindClock())
        try:
            await _until(lambda: _plan(worker).policy == "static:4", 5)
            for number, prompt in enumerate(PROMPTS):
                await router.end(f"r{number}", limit_s=60)
                assert router.ids[f"r{number}"] == greedy_text(prompt, 120)
        finally:
            await behind.stop()


async def test_a_planner_that_ends_streams_at_random_never_loses_the_worker(
    worker: Worker, port: int
) -> None:
    """F07: whatever the moment, the worker comes back; stopping is clean all the same."""
    for attempt in range(3):
        planner = await _planner(port)
        await _until(lambda: _plan(worker).policy == "static:4", 6)
        await asyncio.sleep(0.03 * attempt)
        await planner.stop()
        await _until(lambda: _plan(worker) is OFF, 4)
    assert worker.planner is not None
    assert not worker.planner.done()


class _BehindClock(SystemClock):
    def monotonic_s(self) -> float:
        return super().monotonic_s() - 3600

    def wall_s(self) -> float:
        return super().wall_s() - 3600
