"""A worker's own planner client, with a book of plans and nothing behind it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from outrider_worker.engine.costs import CostCurve, CostTable, Timing
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.tally import RecordRing
from outrider_worker.identity import EngineIdentity
from outrider_worker.planner_client import PlannerClient, PlannerTargets
from outrider_worker.planner_client.client import Introduction
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from tests.integration.planner.streams import TOKEN

_ROWS = (1, 2, 4, 8, 16, 32)


def introduction(incarnation: str) -> Introduction:
    timings = tuple(Timing(0.010 + 0.001 * rows, 1e-4, 5) for rows in _ROWS)
    return Introduction(
        deployment="demo",
        incarnation=incarnation,
        address="127.0.0.1:1",
        identity=EngineIdentity("tiny", "abc", ("ngram",), "cpu", "float32", _ROWS, 1),
        limits=SchedulerLimits(max_running_requests=4, max_rows_per_forward=32),
        max_draft_tokens=4,
        kv_capacity_tokens=1024,
        row_buckets=_ROWS,
        drafters=(DrafterTraits("ngram", DrafterCost.HOST, 4, sparse=True),),
        costs=CostTable((CostCurve(128, _ROWS, timings),)),
    )


class Client:
    """The client and the plans that were in force, as seen by an engine that looks often."""

    def __init__(self, addresses: tuple[str, ...], incarnation: str, check_s: float) -> None:
        self.book = PlanBook()
        self.seen: list[str] = []
        targets = PlannerTargets(addresses, incarnation, check_s)
        self._client = PlannerClient(
            targets, TOKEN, introduction(incarnation), RecordRing(), self.book, Guard().snapshot
        )
        self.link = self._client.link
        self._tasks = [asyncio.create_task(self._client.run()), asyncio.create_task(self._look())]

    @property
    def plan(self) -> Plan:
        return self.book.in_force(time.monotonic())

    async def until(self, condition: Callable[[], bool], limit_s: float = 10.0) -> None:
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            policy = self.plan.policy
            if not self.seen or self.seen[-1] != policy:
                self.seen.append(policy)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def client(
    ports: list[int], incarnation: str = "worker-1", check_s: float = 0.2
) -> AsyncIterator[Client]:
    made = Client(tuple(f"127.0.0.1:{port}" for port in ports), incarnation, check_s)
    try:
        yield made
    finally:
        await made.close()
