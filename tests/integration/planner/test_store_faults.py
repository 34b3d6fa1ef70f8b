"""A planner over a real Redis behind a proxy: whatever becomes of the store, plans and heartbeats
go on, and once it is back every sum has arrived exactly once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from outrider_planner import service
from outrider_planner.assembly import PlannerProcess
from outrider_planner.core.planner import scopes
from outrider_planner.core.sums import merge
from outrider_planner.store import link, redis_client
from outrider_planner.store.redis import RedisStore
from tests.integration.planner.streams import (
    WorkerStream,
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.redis
# Ten to the second instead of one. A plan takes some milliseconds; one that waited for a silent
# store would take the 1.65 s of a call. What lies between is for busy machines.
PACE_S, TIMEOUT_S, LATE_S = 0.1, 0.8, 1.5


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@dataclass
class Rig:
    """A worker's stream at a planner whose store can be troubled."""

    server: RedisServer
    proxy: FaultProxy
    planner: PlannerProcess
    stream: WorkerStream
    sequence: int = 0

    async def talk(self, seconds: float) -> float:
        """Reports, each answered by a plan, for so long; the longest wait for an answer."""
        longest_s, end_s = 0.0, time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.sequence += 1
            began_s = time.monotonic()
            await self.stream.say(
                reports=make_reports(self.sequence, accepted=8 if self.sequence % 2 else 0)
            )
            await self.stream.next("plan")
            longest_s = max(longest_s, time.monotonic() - began_s)
            await asyncio.sleep(0.02)
        return longest_s

    @property
    def verified(self) -> int:
        """Drafts reported as verified at the first position."""
        return 8 * self.sequence

    async def settled(self) -> dict[str, int]:
        """The deployment's sums as the store has them once nothing waits any more."""
        async with asyncio.timeout(20.0):
            while not (self.planner.service.store_up and await self._stored() >= self.verified):
                await asyncio.sleep(0.05)
        await asyncio.sleep(4 * PACE_S)  # nothing may come twice either
        return await self._sums()

    async def _stored(self) -> int:
        return (await self._sums()).get("ngram|greedy|0|verified|0|0", 0)

    async def _sums(self) -> dict[str, int]:
        (worker,) = self.planner.service.planner.workers.values()
        store, whole = RedisStore(self.server.url), dict[str, int]()
        try:
            for bucket in await store.buckets(scopes(worker.hello)[0]):
                merge(whole, bucket)
        finally:
            await store.close()
        return whole


@pytest.fixture
async def rig(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(link, "RETRY_S", PACE_S)
    monkeypatch.setattr(service, "_TICK_S", PACE_S)
    monkeypatch.setattr(redis_client, "TIMEOUT_S", TIMEOUT_S)
    redis_server.ask("FLUSHALL")
    async with fault_proxy(redis_server.port) as proxy:
        settings = {"store": "redis", "redis_url": proxy.url}
        async with running_planner(**settings) as planner, worker_stream(planner) as stream:
            core = planner.service.planner
            core.config = replace(core.config, flush_interval_s=PACE_S)
            await stream.say(hello=make_hello())
            await stream.next("plan")
            yield Rig(redis_server, proxy, planner, stream)


async def _slow(rig: Rig) -> None:
    rig.proxy.delay_s = 0.2


async def _silent(rig: Rig) -> None:
    rig.proxy.delay_s = 30.0


async def _answers_lost(rig: Rig) -> None:
    rig.proxy.drop = True


async def _half_open(rig: Rig) -> None:
    rig.proxy.half_open = True


async def _down(rig: Rig) -> None:
    rig.proxy.refuse = True
    rig.proxy.reset()


async def _demoted(rig: Rig) -> None:
    rig.proxy.readonly = True


async def _full(rig: Rig) -> None:
    rig.server.ask("CONFIG", "SET", "maxmemory", "1")


@pytest.mark.parametrize(
    "fault", [_slow, _silent, _answers_lost, _half_open, _down, _demoted, _full]
)
async def test_plans_go_on_and_sums_arrive_once(
    rig: Rig, fault: Callable[[Rig], Awaitable[None]]
) -> None:
    await rig.talk(0.3)
    await fault(rig)
    assert await rig.talk(1.0) < LATE_S
    rig.proxy.heal()
    rig.server.ask("CONFIG", "SET", "maxmemory", "0")
    assert await rig.talk(0.2) < LATE_S
    sums = await rig.settled()
    assert sums["ngram|greedy|0|verified|0|0"] == rig.verified
    assert sums["ngram|greedy|0|accepted|0|0"] == 8 * ((rig.sequence + 1) // 2)


async def test_a_server_that_restarts_empty_gets_what_came_after(rig: Rig) -> None:
    """Flushed or restarted without its data: what was acknowledged is gone, nothing else is, and
    this planner goes on from its own memory."""
    await rig.talk(0.3)
    await rig.settled()
    known = rig.verified
    rig.server.stop()
    assert await rig.talk(0.5) < LATE_S
    rig.server.start()
    async with asyncio.timeout(10.0):
        while await rig._stored() < rig.verified - known:
            await asyncio.sleep(0.05)
    assert await rig._stored() == rig.verified - known


async def test_two_planners_at_one_store_add_up(redis_server: RedisServer) -> None:
    """No leader: each sends what it saw, and the sums are those of both."""
    redis_server.ask("FLUSHALL")
    settings = {"store": "redis", "redis_url": redis_server.url}
    async with (
        fault_proxy(redis_server.port) as proxy,
        running_planner(**settings) as one,
        running_planner(**settings) as two,
        worker_stream(one) as first,
        worker_stream(two) as second,
    ):
        rigs = [Rig(redis_server, proxy, one, first), Rig(redis_server, proxy, two, second)]
        for number, rig in enumerate(rigs):
            await rig.stream.say(hello=make_hello(f"worker-{number}"))
            await rig.stream.next("plan")
        await asyncio.gather(*(rig.talk(0.5) for rig in rigs))
        total = sum(rig.verified for rig in rigs)
        async with asyncio.timeout(10.0):
            while await rigs[0]._stored() != total:
                await asyncio.sleep(0.1)
        assert (await rigs[1]._sums())["ngram|greedy|0|asked|1|0"] == total
