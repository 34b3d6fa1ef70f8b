"""Ten times what can be served: some is, the rest is told at once, memory stays flat (F17)."""

import asyncio
import random
from collections import Counter

import pytest

from tests.load.clients import GOOD, LONG, Answer, ask, quantile, request_bytes, scaled
from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_process import RouterProcess, router_process

pytestmark = pytest.mark.load
PLACES = 8
ANSWER_S = 0.8
SECONDS = scaled(2, 60)
PER_SECOND = 10 * PLACES / ANSWER_S
MOST_GROWTH_BYTES = 24 * 2**20


async def arrivals(router: RouterProcess, per_second: float, seconds: float) -> list[Answer]:
    """Requests that come at random and do not wait for each other's answers."""
    loop, chance, request = asyncio.get_running_loop(), random.Random(5), request_bytes(GOOD)
    next_s = loop.time()
    end_s = next_s + seconds
    asking = []
    while next_s < end_s:
        asking.append(asyncio.create_task(ask(router.port, request)))
        next_s += chance.expovariate(per_second)
        await asyncio.sleep(max(next_s - loop.time(), 0.0))
    return list(await asyncio.gather(*asking))


async def test_ten_times_what_can_be_served() -> None:
    async with (
        FakeWorker(script=saying("abcd", 1, gap_s=ANSWER_S / 4)) as worker,
        router_process(
            worker,
            OUTRIDER_ROUTER_MAX_IN_FLIGHT=str(PLACES),
            OUTRIDER_ROUTER_MAX_WAITING=str(2 * PLACES),
        ) as router,
    ):
        await router.until_ready()
        await arrivals(router, PER_SECOND, 1)
        before_bytes = router.resident_bytes
        answers = await arrivals(router, PER_SECOND, SECONDS)
        growth_bytes = router.resident_bytes - before_bytes
        counts = Counter(answer.status for answer in answers)
        assert set(counts) == {200, 429}
        assert counts[200] >= 3 * PLACES, "whoever was in, and the line"
        assert growth_bytes < MOST_GROWTH_BYTES
        await router.until_idle()
        after = await asyncio.gather(
            *(ask(router.port, request_bytes(GOOD)) for _ in range(PLACES))
        )
        assert {answer.status for answer in after} == {200}, "it passes"
        refused_s = [answer.seconds for answer in answers if answer.status == 429]
        served_s = [answer.seconds for answer in answers if answer.status == 200]
        print(
            f"\noverload: {len(answers)} requests in {SECONDS} s, {counts[200]} served "
            f"(p99 {quantile(served_s, 0.99):.2f} s), {counts[429]} refused in "
            f"p50 {quantile(refused_s, 0.5) * 1e3:.1f} ms, p99 "
            f"{quantile(refused_s, 0.99) * 1e3:.1f} ms; memory +{growth_bytes / 2**20:.1f} MiB"
        )
        if LONG:
            assert quantile(refused_s, 0.99) < 0.1
