"""Tasks in the background that must not end unseen.

A task that nobody awaits keeps its fault to itself, and what it did is no longer done: keys that
were withdrawn stay valid, workers that are gone stay listed.
"""

import asyncio
from collections.abc import Awaitable, Callable

from outrider_runtime.clock import Clock, SystemClock
from outrider_runtime.logs import get_logger

log = get_logger(__name__)

REST_S = 1.0
_SYSTEM_CLOCK = SystemClock()


def keep_going(
    name: str, work: Callable[[], Awaitable[None]], clock: Clock = _SYSTEM_CLOCK
) -> asyncio.Task[None]:
    """A task that does `work`, and begins it anew, a second later, whenever it fails.

    It ends where the work returns or is cancelled. Each fault is logged under the `name`.
    """

    async def run() -> None:
        while True:
            try:
                await work()
                return
            except Exception:
                log.exception("task_failed", task=name)
            await clock.sleep(REST_S)

    return asyncio.create_task(run(), name=name)
