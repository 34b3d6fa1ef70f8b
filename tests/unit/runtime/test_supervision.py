"""Tasks in the background that fail: told, and begun anew."""

import asyncio

from structlog.testing import capture_logs

from outrider_runtime.clock import VirtualClock
from outrider_runtime.supervision import REST_S, keep_going


async def test_work_that_fails_is_told_and_begun_anew_until_it_ends() -> None:
    clock, begun = VirtualClock(), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise RecursionError("too deep")

    with capture_logs() as lines:
        task = keep_going("example", work, clock)
        await clock.advance(0)
        assert begun == 1, "not at once, which would keep everybody busy"
        await clock.advance(2.5 * REST_S)
        await asyncio.wait_for(task, 1)
    assert begun == 3
    assert [(line["event"], line["task"]) for line in lines] == [("task_failed", "example")] * 2


async def test_work_ends_where_it_is_cancelled() -> None:
    clock, started = VirtualClock(), asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    task = keep_going("example", work, clock)
    await started.wait()
    task.cancel()
    await asyncio.wait([task], timeout=1)
    assert task.cancelled()
