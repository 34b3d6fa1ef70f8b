"""Workers as processes of their own, killed and stopped by signals in the middle of streams."""

import asyncio
import signal
import sys
from typing import Any

import pytest

from tests.support import tiny_tokenizers as tiny
from tests.support.net import free_ports
from tests.support.processes import Process
from tests.support.router_stack import RunningRouter, running_router, until

TEXT = "Workers come and workers go, and the text goes on as if nothing had happened. " * 3
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
SILENCE_LIMIT_S = 6.0


def worker_process(port: int) -> Process:
    return Process(
        [sys.executable, "-m", "tests.support.fake_worker_process", str(port), ".02", TEXT]
    )


async def read(router: RunningRouter, pieces: list[str]) -> str:
    """A stream's whole text; what has come so far is in `pieces`."""
    stream = await router.client.chat.completions.create(**GOOD, stream=True)
    async for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(pieces)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_streams_outlive_a_worker_that_is_killed_or_stopped(number: signal.Signals) -> None:
    """F08, F09: a killed one is noticed at once, a stopped one by its silence within 6 s."""
    ports = free_ports(2)
    with worker_process(ports[0]) as first, worker_process(ports[1]) as second:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        async with running_router(*addresses, ready=False) as router:
            workers = router.state.registry.workers
            await until(lambda: not any(w.trouble for w in workers.values()), 30, "both ready")
            progress: list[list[str]] = [[] for _ in range(6)]
            streams = asyncio.gather(*(read(router, pieces) for pieces in progress))
            await until(lambda: min(map(len, progress)) > 5, 10, "all have begun")
            victim = first if workers[addresses[0]].in_flight else second
            lost = workers[addresses[0] if victim is first else addresses[1]]
            victim.send(number)
            since_s = asyncio.get_running_loop().time()
            await until(lambda: lost.client.trouble is not None, SILENCE_LIMIT_S, "it is missed")
            if number is signal.SIGKILL:
                assert asyncio.get_running_loop().time() - since_s < 2
            assert await asyncio.wait_for(streams, 30) == [TEXT] * 6
            assert await router.metric("outrider_router_migrations_total") > 0
            tokens = await router.metric("outrider_router_generation_tokens_total")
            assert tokens == 6 * len(tiny.encode(TEXT))
            await until(router.settled, 2, "settled")
