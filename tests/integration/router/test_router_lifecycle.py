"""Clients that go, stop reading or run out of time, and what is left behind: nothing."""

import asyncio
import itertools
import random
import socket
import statistics
from collections.abc import Awaitable
from typing import Any

import pytest
import structlog

from outrider.worker.v1 import worker_pb2
from outrider_router.types import Submission
from outrider_router.worker_client.send_line import SendLine
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, saying
from tests.support.router_stack import HurriedClock, RunningRouter, Stack, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"
TEXT = "abcdefghijklmnopqrstuvwxyz"


async def outcome(router: RunningRouter, name: str) -> float:
    return await router.metric("outrider_router_requests_total", outcome=name)


async def started(router: RunningRouter) -> float:
    return await router.metric("outrider_router_requests_started_total")


async def test_disconnect_cancels_on_the_worker() -> None:
    """E13: before the first token and after it, streaming or not, with all middleware on."""
    async with FakeWorker() as worker, running_router(worker, api_keys="k") as router:
        for stream, stall_after in itertools.product((False, True), (0, 1)):
            worker.forget()
            router.forget()
            worker.script = saying(TEXT, 1, stall_after=stall_after)
            body, headers = GOOD | {"stream": stream}, {"Authorization": "Bearer k"}
            task = asyncio.create_task(router.http.post(CHAT, json=body, headers=headers))
            await until(lambda: worker.active, 2, "the worker has the request")
            await asyncio.sleep(0.03)
            task.cancel()
            await until(lambda: worker.cancelled and not worker.active, 1, "cancelled there")
            await until(router.settled, 1, "nothing is left in the router")
            assert await outcome(router, "cancelled") == 1
            assert await started(router) == 1


async def test_disconnect_in_line_gives_the_place_in_it_back() -> None:
    """E13, F18: of who waits no worker ever learns, and who comes next moves up."""
    async with (
        FakeWorker(script=saying(TEXT, 9, stall_after=0)) as worker,
        running_router(worker, max_in_flight=2, max_waiting=2) as router,
    ):
        admission = router.state.admission

        def asked(**options: Any) -> asyncio.Task[Any]:
            return asyncio.create_task(router.http.post(CHAT, json=GOOD | options))

        held = asked(n=2)
        await until(lambda: len(worker.active) == 2, 2, "all places are taken")
        for stream in (False, True):
            leaving, staying = asked(stream=stream), asked(stream=stream, n=2)
            await until(lambda: admission.waiting == 2, 2, "the line is full")
            assert (await asked()).status_code == 429
            leaving.cancel()
            await until(lambda: admission.waiting == 1, 2, "one has left")
            late = asked(stream=stream)
            await until(lambda: admission.waiting == 2, 2, "somebody else has its place")
            for task in (late, staying):
                task.cancel()
            await until(lambda: admission.waiting == 0, 2, "nobody waits")
        assert len(worker.submitted) == 2
        worker.resume.set()
        assert (await held).status_code == 200
        assert (await asked()).status_code == 200
        await until(router.settled, 2, "nothing is left in the router")
        assert await outcome(router, "cancelled") == 6
        assert await outcome(router, "overloaded") == 2


async def dropped(router: RunningRouter, number: int, moment: Awaitable[None]) -> None:
    """A request whose client goes at that moment."""
    options = {"stream": number % 2 == 0, "n": 1 + number % 3}
    task = asyncio.create_task(router.http.post(CHAT, json=GOOD | options))
    await moment
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_outcomes_add_up(stack: Stack) -> None:
    """G02, F18: requests of every fate, clients that go at random points."""
    router = stack.router
    stack.worker.script = saying(TEXT, 1, 2, gap_s=0.005)
    chance = random.Random(7)
    good = [router.http.post(CHAT, json=GOOD) for _ in range(5)]
    cut = [router.http.post(CHAT, json=GOOD | {"max_tokens": 3}) for _ in range(3)]
    bad = [router.http.post(CHAT, json=GOOD | {"n": 0}) for _ in range(2)]
    answers = await asyncio.gather(*good, *cut, *bad)
    assert [answer.status_code for answer in answers] == [200] * 8 + [400] * 2
    moments = [asyncio.sleep(chance.uniform(0, 0.2)) for _ in range(60)]
    await asyncio.gather(*(dropped(router, at, moment) for at, moment in enumerate(moments)))
    await stack.until_idle()
    counts = {name: await outcome(router, name) for name in ("stop", "length", "invalid")}
    assert counts["length"] == 3
    assert counts["invalid"] == 2
    assert counts["stop"] >= 5
    cancelled = await outcome(router, "cancelled")
    assert sum(counts.values()) + cancelled == await started(router)
    assert cancelled > 0
    tokens = await router.metric("outrider_router_generation_tokens_total")
    assert tokens >= 5 * len(tiny.encode(TEXT)) + 3 * 3


async def test_nothing_leaks_though_closing_fails(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F12: 300 clients that go at random points, every third close of a choice raises."""
    router, worker, chance = stack.router, stack.worker, random.Random(11)
    # No choice ends by itself, which would hide what was left behind.
    worker.script = saying(TEXT, 1, 2, gap_s=0.01, stall_after=6)
    closed: list[tuple[str, int]] = []

    cancel = SendLine.cancel

    def sometimes(line: SendLine, submission: Submission) -> None:
        closed.append(submission.key)
        if len(closed) % 3 == 0:
            raise ConnectionError("closing failed")
        cancel(line, submission)

    monkeypatch.setattr(SendLine, "cancel", sometimes)
    with structlog.testing.capture_logs():
        for wave in range(0, 300, 50):
            moments = [asyncio.sleep(chance.uniform(0, 0.2)) for _ in range(49)]
            clients = [dropped(router, wave + at, moment) for at, moment in enumerate(moments)]
            # One that goes when its three choices have begun, however busy the machine is.
            begun = len(worker.submitted) + 3
            late = until(lambda least=begun: len(worker.submitted) >= least, 20, "begun")
            await asyncio.gather(*clients, dropped(router, 2, late))
            await until(router.settled, 10, "nothing is left in the router")
    assert len(closed) >= 18
    assert 0 < await outcome(router, "cancelled") == await started(router)
    monkeypatch.undo()
    worker.resume.set()
    assert (await router.http.post(CHAT, json=GOOD)).status_code == 200


async def seconds_of(router: RunningRouter, body: dict[str, Any]) -> float:
    """The median of some answers, one after the other."""
    took_s = []
    for _ in range(5):
        started_s = asyncio.get_running_loop().time()
        assert (await router.http.post(CHAT, json=body)).status_code == 200
        took_s.append(asyncio.get_running_loop().time() - started_s)
    return statistics.median(took_s)


async def test_slow_reader_is_cut_and_others_do_not_wait() -> None:
    """F16: a client that stops reading holds back only itself, and not for ever."""
    # A long name makes events long, which fills the sockets with few of them; and they come one by
    # one, since what waits to be written becomes one event.
    name = "m" * 500
    big = Script([tiny.encode("a")] * 2000, gap_s=0.002)
    async with (
        FakeWorker(script=big, context_tokens=10**6, model=name) as worker,
        running_router(worker, write_limit_s=1.0) as router,
    ):
        asked = GOOD | {"model": name, "max_tokens": 5}
        alone_s = await seconds_of(router, asked)
        worker.forget()
        worker.script = big
        host, port = router.url.removeprefix("http://").split(":")
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((host, int(port)))
        body = (
            f'{{"model":"{name}","stream":true,"n":12,"messages":[{{"role":"user","content":""}}]}}'
        )
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        stuck.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await until(lambda: worker.submitted, 2, "submitted")
        beside_s = await seconds_of(router, asked)
        assert worker.active, "the slow reader is still there"
        # As long as nobody waits for it: a write to it takes a second to be given up.
        assert beside_s < alone_s + 0.3
        await until(router.settled, 8, "the slow reader was cut")
        stuck.close()
        assert await outcome(router, "cancelled") == 1


async def test_many_streams_all_end_properly(stack: Stack) -> None:
    stack.worker.script = saying(TEXT, 4)

    async def one() -> str:
        response = await stack.router.http.post(CHAT, json=GOOD | {"stream": True})
        return response.text

    for _ in range(4):
        texts = await asyncio.gather(*(one() for _ in range(25)))
        assert all(text.endswith("data: [DONE]\n\n") for text in texts)
    assert await outcome(stack.router, "stop") == 100
    assert stack.router.settled()


async def test_failed_stream_is_closed_at_once(stack: Stack) -> None:
    """E12: after the error event nothing comes, and the connection is closed within 2 s."""
    failing = worker_pb2.FAILURE_CODE_INTERNAL
    stack.worker.script = saying("abcde", 1, failure=failing)
    reader, writer = await asyncio.open_connection(*stack.router.url[7:].split(":"))
    body = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    before = await asyncio.wait_for(reader.readuntil(b'{"error":'), 2)
    after = await asyncio.wait_for(reader.read(), 2)
    assert b'"content":"a' in before
    assert b"data:" not in after
    writer.close()
    await writer.wait_closed()


async def test_time_limit_of_a_request_is_by_the_routers_clock() -> None:
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=1)) as worker,
        running_router(worker, request_limit_s=3, clock=HurriedClock(10)) as router,
    ):
        response = await asyncio.wait_for(router.http.post(CHAT, json=GOOD), 2)
        assert response.status_code == 408
        await until(lambda: worker.cancelled, 1, "cancelled on the worker")
        assert await outcome(router, "deadline") == 1
        assert 0 < worker.submitted[0].deadline_ms <= 3_000
