"""Thousands of clients that go at any moment: nothing of them is left (F12, F18)."""

import asyncio
import random

import pytest

from tests.load.clients import GOOD, LONG, ask, request_bytes, scaled
from tests.support.fake_worker import FakeWorker, saying
from tests.support.net import LOOPBACK
from tests.support.router_process import RouterProcess, router_process
from tests.support.router_stack import until

pytestmark = pytest.mark.load
ABORTS = scaled(240, 20_000)
WARM = scaled(160, 2_000)
AT_ONCE = 40
# Far fewer than come, so that most leave while they stand in line.
PLACES = 8
# Clients that go do not wait for the router, which on a slow machine has some to catch up with.
IDLE_LIMIT_S = scaled(30, 300)
LATEST_S = 0.05
# Of the memory in use; what few requests fill for the first time weighs more.
MOST_GROWTH = 0.05 if LONG else 0.2
PROMPT = "a long way to go " * 60


async def go_early(
    router: RouterProcess, request: bytes, sent_share: float, after_s: float
) -> None:
    """Send as much of the request, wait, and close the connection whatever has come."""
    _, writer = await asyncio.open_connection(LOOPBACK, router.port)
    writer.write(request[: int(len(request) * sent_share)])
    await writer.drain()
    await asyncio.sleep(after_s)
    writer.transport.abort()


async def crowd(router: RouterProcess, count: int, chance: random.Random) -> None:
    """So many aborted requests, some at a time, of every kind."""
    message = {"messages": [{"role": "user", "content": PROMPT}]}
    kinds = [
        request_bytes(GOOD | message | {"stream": s, "n": n}) for s in (False, True) for n in (1, 3)
    ]

    async def one_after_another(mine: int) -> None:
        for number in range(mine):
            share = 1.0 if number % 10 else chance.random()
            after_s = chance.uniform(0, LATEST_S)
            await go_early(router, kinds[number % len(kinds)], share, after_s)

    await asyncio.gather(*(one_after_another(count // AT_ONCE) for _ in range(AT_ONCE)))


async def test_nothing_is_left_of_clients_that_go() -> None:
    chance = random.Random(3)
    async with (
        FakeWorker(script=saying("abcdefghij" * 20, 2, gap_s=0.01), context_tokens=4096) as worker,
        router_process(
            worker,
            OUTRIDER_ROUTER_MAX_IN_FLIGHT=str(PLACES),
            OUTRIDER_ROUTER_MAX_CHOICES=str(PLACES),
            OUTRIDER_ROUTER_MAX_WAITING="32",
        ) as router,
    ):
        await router.until_ready()
        await crowd(router, WARM, chance)
        await router.until_idle(IDLE_LIMIT_S)
        before = await router.samples()
        before_bytes = router.resident_bytes
        crowding = asyncio.create_task(crowd(router, ABORTS, chance))
        most_waiting = 0.0
        while not crowding.done():
            most_waiting = max(most_waiting, (await router.samples())["requests_waiting"])
            await asyncio.sleep(0.05)
        await crowding
        await router.until_idle(IDLE_LIMIT_S)
        growth = router.resident_bytes / before_bytes - 1
        after = await router.samples()
        ended = {name: after[name] - before[name] for name in after if name.startswith("outcome:")}
        print(
            f"\naborts: {ABORTS}, memory {growth:+.1%}, ended: {ended}, "
            f"at most {most_waiting:g} in line"
        )
        await until(lambda: not worker.active, 5, "nothing is left on the worker")
        assert ended["outcome:cancelled"] > ABORTS / 2
        assert most_waiting > 0, "some left while they stood in line"
        assert ended["outcome:error"] == 0
        assert growth < MOST_GROWTH
        assert (await ask(router.port, request_bytes(GOOD | {"max_tokens": 3}))).status == 200
