"""Prompts of 20 MB: read and tokenised beside everybody else, who do not notice."""

import asyncio

import pytest

from tests.load.clients import LONG, ask, request_bytes, scaled
from tests.load.health_checks import health_checks
from tests.support.fake_worker import FakeWorker
from tests.support.router_process import router_process

pytestmark = pytest.mark.load
PROMPT_BYTES = scaled(1, 20) * 10**6
PROMPTS = scaled(2, 8)
HEALTH_LIMIT_MS = 250


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
        async with health_checks(router.port) as took_ms:
            asking = [ask(router.port, request) for _ in range(PROMPTS)]
            answers = await asyncio.gather(*asking, ask(router.port, too_large))
        assert [answer.status for answer in answers] == [400] * PROMPTS + [413]
        assert all(b"context_length_exceeded" in answer.body for answer in answers[:-1])
        assert not worker.submitted
        slowest_s = max(answer.seconds for answer in answers)
        print(
            f"\nlarge prompts: {PROMPTS} of {PROMPT_BYTES / 1e6:g} MB, the slowest in "
            f"{slowest_s:.1f} s; /health {len(took_ms)} times, at most "
            f"{max(took_ms):.0f} ms"
        )
        assert took_ms
        if LONG:
            assert max(took_ms) < HEALTH_LIMIT_MS
        await router.until_idle()
