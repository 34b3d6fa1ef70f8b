"""Ten times more than fits: some are served, the rest is refused at once, and it passes."""

import asyncio
import resource
import statistics
import time
from typing import Any

import pytest

from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import RunningRouter, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


async def refused(router: RunningRouter, times: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Ask so often, and be refused each time while time stands still; the median CPU seconds.

    Whatever waits for an amount of time, however short, waits without end then. The median leaves
    out what the process does beside.
    """
    cost_s = []
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as standing:
        now_s = loop.time()
        standing.setattr(loop, "time", lambda: now_s)
        for _ in range(times):
            began_s = time.process_time()
            response = await router.http.post(CHAT, json=GOOD)
            cost_s.append(time.process_time() - began_s)
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
    return statistics.median(cost_s)


async def test_overload_is_refused_at_once_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """F17: 200 and 429 only; a refusal costs the router little and waits for nothing."""
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, max_in_flight=8, max_waiting=8) as router,
    ):
        held = [asyncio.create_task(router.http.post(CHAT, json=GOOD)) for _ in range(16)]
        await until(lambda: router.state.admission.waiting == 8, 20, "8 are in, 8 wait")
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cost_s = await refused(router, 160, monkeypatch)
        assert cost_s < 0.02
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 20_000
        assert not any(task.done() for task in held)
        worker.resume.set()
        assert [(await task).status_code for task in held] == [200] * 16
        await until(router.settled, 10, "settled")
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 200
        assert await router.metric("outrider_router_requests_total", outcome="overloaded") == 160
        assert await router.metric("outrider_router_requests_waiting") == 0


async def test_a_burst_of_ten_times_what_fits() -> None:
    """All at once: what fits is served, the rest is refused while that still runs."""
    async with (
        FakeWorker(script=saying("some words", stall_after=1)) as worker,
        running_router(worker, max_in_flight=3, max_waiting=3) as router,
    ):
        burst = [asyncio.create_task(router.http.post(CHAT, json=GOOD)) for _ in range(60)]
        await until(lambda: sum(task.done() for task in burst) >= 54, 20, "54 are refused")
        assert {task.result().status_code for task in burst if task.done()} == {429}
        worker.resume.set()
        statuses = [response.status_code for response in await asyncio.gather(*burst)]
        assert statuses.count(200) == 6
        await until(router.settled, 10, "settled")
