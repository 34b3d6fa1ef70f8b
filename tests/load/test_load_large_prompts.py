"""Prompts of 20 MB: read and tokenised beside everybody else, who do not notice."""

import asyncio
import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.load.clients import LONG, ask, request_bytes, scaled
from tests.support.fake_worker import FakeWorker
from tests.support.net import LOOPBACK
from tests.support.router_process import router_process

pytestmark = pytest.mark.load
PROMPT_BYTES = scaled(1, 20) * 10**6
PROMPTS = scaled(2, 8)
HEALTH_LIMIT_S = 0.25


class HealthChecks(threading.Thread):
    """Asks again and again whether the router is alive, apart from the test's own event loop."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.took_s: list[float] = []
        self._port = port
        self._enough = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=30)
        while not self._enough.wait(0.01):
            started_s = time.monotonic()
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            self.took_s.append(time.monotonic() - started_s)
        connection.close()

    def stop(self) -> None:
        self._enough.set()
        self.join()


@contextmanager
def health_checks(port: int) -> Iterator[HealthChecks]:
    checks = HealthChecks(port)
    checks.start()
    try:
        yield checks
    finally:
        checks.stop()


@pytest.mark.parametrize("context_tokens", [2048, PROMPT_BYTES // 6])
async def test_large_prompts_keep_nobody_waiting(context_tokens: int) -> None:
    """Refused as too long, by a part of the prompt or once all of it is tokenised."""
    words = "the quick brown fox jumps over the lazy dog; "
    text = words * (PROMPT_BYTES // len(words))
    request = request_bytes({"model": "tiny", "messages": [{"role": "user", "content": text}]})
    too_large = request_bytes({"model": "tiny", "x": text * 2})
    async with (
        FakeWorker(context_tokens=context_tokens) as worker,
        router_process(
            worker,
            OUTRIDER_ROUTER_MAX_BODY_BYTES=str(PROMPT_BYTES * 3 // 2),
        ) as router,
    ):
        await router.until_ready()
        with health_checks(router.port) as checks:
            asking = [ask(router.port, request) for _ in range(PROMPTS)]
            answers = await asyncio.gather(*asking, ask(router.port, too_large))
        assert [answer.status for answer in answers] == [400] * PROMPTS + [413]
        assert all(b"context_length_exceeded" in answer.body for answer in answers[:-1])
        assert not worker.submitted
        slowest_s = max(answer.seconds for answer in answers)
        print(
            f"\nlarge prompts: {PROMPTS} of {PROMPT_BYTES / 1e6:g} MB, the slowest in "
            f"{slowest_s:.1f} s; /health {len(checks.took_s)} times, at most "
            f"{max(checks.took_s) * 1e3:.0f} ms"
        )
        assert checks.took_s
        if LONG:
            assert max(checks.took_s) < HEALTH_LIMIT_S
        await router.until_idle()
