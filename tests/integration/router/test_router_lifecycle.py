"""Clients that go, workers that die, freeze or drain, and what is left behind: nothing."""

import asyncio
import random
import socket
from typing import Any

import openai
import pytest

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, saying
from tests.support.router_stack import RunningRouter, running_router, until

MESSAGES: Any = [{"role": "user", "content": "hi"}]
GOOD: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
CHAT = "/v1/chat/completions"
TEXT = "abcdefghijklmnopqrstuvwxyz"


async def outcome(router: RunningRouter, name: str) -> float:
    return await router.metric("outrider_router_requests_total", outcome=name)


def troubles(router: RunningRouter) -> list[str | None]:
    """What keeps each worker from being used, in the order of the list."""
    return [worker.client.trouble for worker in router.state.registry.workers.values()]


async def started(router: RunningRouter) -> float:
    return await router.metric("outrider_router_requests_started_total")


async def read_text(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def stream_of(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(**GOOD, stream=True, **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stall_after", [0, 1])
async def test_disconnect_cancels_on_the_worker(stream: bool, stall_after: int) -> None:
    """E13: before the first token and after it, streaming or not, with all middleware on."""
    script = saying(TEXT, 1, stall_after=stall_after)
    async with (
        FakeWorker(script=script) as worker,
        running_router(worker, api_keys="k") as router,
    ):
        headers = {"Authorization": "Bearer k"}
        body = GOOD | {"stream": stream}
        call = router.http.post(CHAT, json=body, headers=headers)
        task = asyncio.create_task(call)
        await until(lambda: worker.active, 2, "the worker has the request")
        await asyncio.sleep(0.1)
        task.cancel()
        await until(lambda: worker.cancelled and not worker.active, 1, "cancelled on the worker")
        await until(router.settled, 1, "nothing is left in the router")
        assert await outcome(router, "cancelled") == 1
        assert await started(router) == 1


async def test_worker_killed_before_the_first_token_is_retried_elsewhere() -> None:
    """F08 with another worker: the answer comes from it; with none: 503 at once."""
    dying = saying(TEXT, 1, die_after=0)
    async with (
        FakeWorker(script=dying) as first,
        FakeWorker(script=saying(TEXT, 3), running_requests=5) as second,
        running_router(first, second) as router,
    ):
        await until(lambda: troubles(router) == [None, None], 5, "both ready")
        answer = await router.client.chat.completions.create(**GOOD)
        assert answer.choices[0].message.content == TEXT
        assert len(first.submitted) == len(second.submitted) == 1
        assert first.submitted[0].seed == second.submitted[0].seed
        assert await router.metric("outrider_router_retries_total") == 1
        await second.die()
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(openai.InternalServerError) as caught:
            await router.client.chat.completions.create(**GOOD)
        assert caught.value.status_code == 503
        assert asyncio.get_running_loop().time() - started_s < 5
        assert router.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_worker_killed_in_the_middle_is_an_error_not_a_hang(stream: bool) -> None:
    script = saying(TEXT, 1, gap_s=0.02, die_after=10)
    async with FakeWorker(script=script) as worker, running_router(worker) as router:
        started_s = asyncio.get_running_loop().time()
        if stream:
            with pytest.raises(openai.APIError, match="the worker was lost"):
                await read_text(await stream_of(router))
        else:
            response = await router.http.post(CHAT, json=GOOD)
            assert (response.status_code, response.headers["x-should-retry"]) == (503, "false")
        assert asyncio.get_running_loop().time() - started_s < 3
        assert (await router.http.get("/ready")).status_code == 503
        assert router.settled()
        assert await outcome(router, "unavailable") == 1
        assert await router.metric("outrider_router_worker_up", worker=worker.address) == 0
        worker.script = saying(TEXT, 5)
        await worker.start()
        await router.until_ready()
        assert await read_text(await stream_of(router)) == TEXT
        assert await router.metric("outrider_router_worker_up", worker=worker.address) == 1


async def test_frozen_worker_is_noticed_by_its_silence() -> None:
    """F13: no sign of life for 5 s ends its requests and readiness; it comes back by itself."""
    script = saying(TEXT, 1, stall_after=1)
    async with FakeWorker(script=script) as worker, running_router(worker) as router:
        task = asyncio.create_task(router.http.post(CHAT, json=GOOD))
        await until(lambda: worker.active, 2, "the worker has the request")
        worker.frozen = True
        response = await asyncio.wait_for(task, 8)
        assert response.status_code == 503
        assert "no sign of life" in response.text
        assert (await router.http.get("/ready")).status_code == 503
        worker.frozen = False
        await router.until_ready(5)


async def test_worker_that_warms_up_or_drains_gets_nothing() -> None:
    async with (
        FakeWorker(script=saying("one")) as first,
        FakeWorker(script=saying("two"), ready=False) as second,
        running_router(first, second) as router,
    ):
        for _ in range(3):
            await router.client.chat.completions.create(**GOOD)
        assert (len(first.submitted), len(second.submitted)) == (3, 0)
        first.ready, second.ready = False, True
        await until(lambda: troubles(router)[0] is not None, 3, "the first is left alone")
        await until(lambda: troubles(router)[1] is None, 3, "the second is taken in")
        for _ in range(2):
            await router.client.chat.completions.create(**GOOD)
        assert (len(first.submitted), len(second.submitted)) == (3, 2)
        second.ready = False
        await until(lambda: router.state.trouble() is not None, 3, "not ready")
        assert "warming up" in (await router.http.get("/ready")).json()["reason"]
        response = await router.http.post(CHAT, json=GOOD)
        assert response.status_code == 503, "a known model without a ready worker"


async def test_full_worker_is_avoided_once() -> None:
    full = Script([], failure=worker_pb2.FAILURE_CODE_OVERLOADED)
    async with (
        FakeWorker(script=full) as first,
        FakeWorker(script=saying("two"), running_requests=9) as second,
        running_router(first, second) as router,
    ):
        await until(lambda: troubles(router) == [None, None], 5, "both ready")
        answer = await router.client.chat.completions.create(**GOOD)
        assert answer.choices[0].message.content == "two"
        second.script = full
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 429


async def test_load_is_spread_and_counted_until_the_end() -> None:
    async with (
        FakeWorker(script=saying(TEXT, 1, gap_s=0.02)) as first,
        FakeWorker(script=saying(TEXT, 1, gap_s=0.02)) as second,
        running_router(first, second) as router,
    ):
        await until(lambda: troubles(router) == [None, None], 5, "both ready")
        streams = await asyncio.gather(*(stream_of(router) for _ in range(6)))
        held = [w.in_flight for w in router.state.registry.workers.values()]
        assert held == [3, 3]
        texts = await asyncio.gather(*map(read_text, streams))
        assert texts == [TEXT] * 6
        await until(router.settled, 1, "settled")


async def test_outcomes_add_up_and_nothing_leaks() -> None:
    """G02, F12, F18: requests of every fate, clients that go at random points."""

    def script(submit: worker_pb2.Submit) -> Script:
        return saying(TEXT, 1, 2, gap_s=0.002)

    async with FakeWorker(script=script) as worker, running_router(worker) as router:
        chance = random.Random(7)

        async def dropped(number: int) -> None:
            options = {"stream": number % 2 == 0, "n": 1 + number % 3}
            task = asyncio.create_task(router.http.post(CHAT, json=GOOD | options))
            await asyncio.sleep(chance.uniform(0, 0.04))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        good = [router.http.post(CHAT, json=GOOD) for _ in range(5)]
        cut = [router.http.post(CHAT, json=GOOD | {"max_tokens": 3}) for _ in range(3)]
        bad = [router.http.post(CHAT, json=GOOD | {"n": 0}) for _ in range(2)]
        answers = await asyncio.gather(*good, *cut, *bad)
        assert [answer.status_code for answer in answers] == [200] * 8 + [400] * 2
        await asyncio.gather(*(dropped(number) for number in range(60)))
        await until(router.settled, 2, "settled")
        await until(lambda: not worker.active, 2, "the worker is idle")
        counts = {name: await outcome(router, name) for name in ("stop", "length", "invalid")}
        assert counts["length"] == 3
        assert counts["invalid"] == 2
        assert counts["stop"] >= 5
        cancelled = await outcome(router, "cancelled")
        assert sum(counts.values()) + cancelled == await started(router)
        assert cancelled > 0
        tokens = await router.metric("outrider_router_generation_tokens_total")
        assert tokens >= 5 * len(tiny.encode(TEXT)) + 3 * 3


async def test_slow_reader_is_cut_and_others_do_not_wait() -> None:
    """F16: a client that stops reading holds back only itself, and not for ever."""
    big = Script([tiny.encode("word " * 5)] * 1500)
    async with (
        FakeWorker(script=big, context_tokens=10**6) as worker,
        running_router(worker, write_limit_s=0.5) as router,
    ):
        host, port = router.url.removeprefix("http://").split(":")
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((host, int(port)))
        body = '{"model":"tiny","stream":true,"n":12,"messages":[{"role":"user","content":"hi"}]}'
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        stuck.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await until(lambda: worker.submitted, 2, "submitted")
        normal = await router.http.post(CHAT, json=GOOD | {"max_tokens": 5})
        assert normal.status_code == 200
        await until(router.settled, 8, "the slow reader was cut")
        stuck.close()
        assert await outcome(router, "cancelled") == 1


async def test_many_streams_all_end_properly() -> None:
    async with FakeWorker(script=saying(TEXT, 4)) as worker, running_router(worker) as router:

        async def one() -> str:
            response = await router.http.post(CHAT, json=GOOD | {"stream": True})
            return response.text

        for _ in range(4):
            texts = await asyncio.gather(*(one() for _ in range(25)))
            assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        assert await outcome(router, "stop") == 100
        assert router.settled()


async def test_token_is_carried_and_its_lack_shows() -> None:
    async with FakeWorker(script=saying("ok"), token="s3cret") as worker:
        async with running_router(worker, token="s3cret") as router:
            assert (await router.http.post(CHAT, json=GOOD)).status_code == 200
        async with running_router(worker, token="wrong", ready=False) as router:
            await until(lambda: "UNAUTHENTICATED" in str(router.state.trouble()), 5, "refused")
            assert (await router.http.get("/ready")).status_code == 503


async def test_time_limit_of_a_request() -> None:
    script = saying(TEXT, 1, stall_after=1)
    async with (
        FakeWorker(script=script) as worker,
        running_router(worker, request_limit_s=0.3) as router,
    ):
        response = await router.http.post(CHAT, json=GOOD)
        assert response.status_code == 408
        await until(lambda: worker.cancelled, 1, "cancelled on the worker")
        assert await outcome(router, "deadline") == 1
        assert worker.submitted[0].deadline_ms == 300
