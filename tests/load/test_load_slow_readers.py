"""Clients that hardly read: others do not notice, memory is bounded, and they are let go (F16)."""

import asyncio
import socket
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from tests.load.clients import DONE, GOOD, Answer, ask, request_bytes, scaled, slow_socket
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import ALL_OPTIONS, FakeWorker, Script
from tests.support.router_process import router_process
from tests.support.router_stack import until

pytestmark = pytest.mark.load
READERS = scaled(8, 50)
TOKENS = scaled(6_000, 60_000)
WRITE_LIMIT_S = scaled(2, 10)
# 20 tokens come at a time. Faster, the many would be more than a core carries, whoever reads them,
# and that is what the others would wait for.
GAP_S = scaled(0.002, 0.05)
# Of one reader: buffers of the server, one piece in writing and what is merged behind it.
MOST_BYTES_EACH = 4 * 2**20


async def trickle(clients: list[socket.socket]) -> None:
    """Read a byte a second from each."""
    loop = asyncio.get_running_loop()
    while True:
        for client in clients:
            await loop.sock_recv(client, 1)
        await asyncio.sleep(1.0)


def typical_s(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.seconds for answer in answers)


async def test_slow_readers_hold_back_nobody_but_themselves() -> None:
    (token,) = tiny.encode("a")
    script = Script([[token] * 20] * (TOKENS // 20), gap_s=GAP_S)
    async with (
        FakeWorker(script=script, context_tokens=10**7, options=ALL_OPTIONS) as worker,
        router_process(worker, OUTRIDER_ROUTER_WRITE_LIMIT_S=str(WRITE_LIMIT_S)) as router,
    ):
        await router.until_ready()
        normal = request_bytes(GOOD | {"stream": True, "max_tokens": 200})
        for _ in range(3):
            await ask(router.port, normal)
        alone_s = typical_s(
            await asyncio.gather(*(ask(router.port, normal) for _ in range(READERS)))
        )
        before_bytes = most_bytes = router.resident_bytes
        costly = {"stream": True, "logprobs": True, "top_logprobs": 2}
        with ExitStack() as closing:
            slow = [slow_socket(router.port, request_bytes(GOOD | costly)) for _ in range(READERS)]
            for client in slow:
                client.setblocking(False)
                closing.enter_context(client)
            reading = asyncio.create_task(trickle(slow))
            beside_s = 0.0
            for _ in range(scaled(1, 5)):
                answers = await asyncio.gather(*(ask(router.port, normal) for _ in range(READERS)))
                assert all(answer.status == 200 for answer in answers)
                assert all(answer.body.endswith(DONE) for answer in answers)
                beside_s = max(beside_s, typical_s(answers))
                most_bytes = max(most_bytes, router.resident_bytes)
            await router.until_idle(WRITE_LIMIT_S + 60)
            most_bytes = max(most_bytes, router.resident_bytes)
            samples = await router.samples()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        growth_mib = (most_bytes - before_bytes) / 2**20
        print(
            f"\nslow readers: {READERS}, answers of {TOKENS} tokens; memory +{growth_mib:.1f} MiB; "
            f"others {alone_s:.2f} s without them, {beside_s:.2f} s beside them"
        )
        # All work is done on as few cores; but nobody waits for a write that is not taken.
        assert beside_s < 2 * alone_s + WRITE_LIMIT_S / 2
        assert samples["outcome:cancelled"] == READERS
        assert most_bytes - before_bytes < READERS * MOST_BYTES_EACH
        await until(lambda: not worker.active, 5, "the worker has dropped them")
