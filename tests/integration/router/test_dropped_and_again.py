"""A client that goes and comes again at once with the same prompt, before a real worker."""

import asyncio
from typing import Any

from tests.support.router_stack import RunningRouter, running_router, until
from tests.support.workers import TOKEN, running_worker

PROMPT = [5, 6, 7, 8, 9]
TEXT = "/v1/completions"


def asking(prompt: list[int], tokens: int) -> dict[str, Any]:
    settings = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"model": "tiny", "prompt": prompt, "max_tokens": tokens, **settings}


async def answer(router: RunningRouter, prompt: list[int]) -> list[int]:
    response = await router.http.post(TEXT, json=asking(prompt, 8))
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return list(choice["token_ids"])


async def begun(router: RunningRouter) -> None:
    """Read a long answer until this is cancelled."""
    body = asking(PROMPT, 450) | {"stream": True}
    async with router.http.stream("POST", TEXT, json=body) as response:
        async for _ in response.aiter_raw():
            pass


async def test_a_prompt_that_was_just_dropped_is_answered_as_ever() -> None:
    """F20: at whatever moment the client went; so is what goes on with the answer."""
    async with (
        running_worker() as worker,
        running_router(f"127.0.0.1:{worker.server.port}", token=TOKEN) as router,
    ):
        expected = await answer(router, PROMPT)
        next_turn = PROMPT + expected[:4]
        expected_next = await answer(router, next_turn)
        for number in range(21):
            leaving = asyncio.create_task(begun(router))
            await asyncio.sleep(number % 21 / 1000)
            leaving.cancel()
            both = await asyncio.gather(answer(router, PROMPT), answer(router, next_turn))
            assert list(both) == [expected, expected_next]
        await until(lambda: router.settled() and worker.engine.idle, 5, "nothing is left")
        assert worker.replica.kv_used_tokens() == 0
        cancelled = await router.metric("outrider_router_requests_total", outcome="cancelled")
        assert cancelled > 8
