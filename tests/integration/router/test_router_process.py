"""The router as its own process: start, refusal to start, and leaving without cutting anybody."""

import asyncio
import signal
import socket
from typing import Any

import httpx2
import pytest

from outrider_router.__main__ import main
from tests.support.fake_worker import FakeWorker, saying
from tests.support.net import free_ports
from tests.support.router_process import RouterProcess, router_process
from tests.support.router_stack import until

TEXT = "abcdefghij"
GOOD: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
CHAT = "/v1/chat/completions"


async def stream(router: RouterProcess) -> str:
    return (await router.http.post(CHAT, json=GOOD)).text


async def begin_streams(router: RouterProcess, worker: FakeWorker) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(stream(router)) for _ in range(10)]
    await until(lambda: len(worker.active) == 10, 5, "the worker has all")
    return tasks


async def status(router: RouterProcess) -> int:
    """What `/ready` says; 0 where nobody listens yet."""
    try:
        return (await router.http.get("/ready")).status_code
    except httpx2.TransportError:
        return 0


async def test_the_first_ready_is_true() -> None:
    """F13: asked from the first moment on, it is said once a request is served, and not before."""
    worker = FakeWorker(script=saying(TEXT), port=free_ports(1)[0], ready=False)
    async with router_process(worker) as router, asyncio.timeout(60):
        seen = {await status(router)}
        while 503 not in seen:
            seen.add(await status(router))
        await worker.start()
        # Its description says no at first, as that of one that still loads does.
        while not worker.descriptions:
            seen.add(await status(router))
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 503
        worker.ready = True
        while (last := await status(router)) != 200:
            seen.add(last)
        assert (await stream(router)).endswith("data: [DONE]\n\n")
        assert seen <= {0, 503}
        await worker.die()


async def test_sigterm_lets_running_streams_finish() -> None:
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=3)) as worker,
        router_process(worker) as router,
    ):
        await router.until_ready()
        tasks = await begin_streams(router, worker)
        router.process.send_signal(signal.SIGTERM)
        while (await router.http.get("/ready")).status_code != 503:
            await asyncio.sleep(0.01)
        late = await router.http.post(CHAT, json=GOOD)
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert (await router.http.get("/health")).status_code == 200
        worker.resume.set()
        texts = await asyncio.gather(*tasks)
        assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        assert await asyncio.wait_for(router.process.wait(), 5) == 0


async def test_sigterm_ends_what_outlasts_the_limit_with_an_error() -> None:
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=3)) as worker,
        router_process(worker, OUTRIDER_ROUTER_DRAIN_LIMIT_S="0.2") as router,
    ):
        await router.until_ready()
        tasks = await begin_streams(router, worker)
        router.process.send_signal(signal.SIGTERM)
        texts = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert all('"error":{"message"' in text for text in texts)
        assert all("the router is stopping" in text for text in texts)
        assert not any("[DONE]" in text for text in texts)
        assert await asyncio.wait_for(router.process.wait(), 5) == 0


async def test_a_killed_router_leaves_nothing_on_its_worker() -> None:
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=3)) as worker,
        router_process(worker) as router,
    ):
        await router.until_ready()
        tasks = await begin_streams(router, worker)
        router.process.kill()
        await until(lambda: not worker.active, 6, "the worker has dropped all")
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, httpx2.TransportError) for end in ends)


def test_bad_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Logs of the whole test process would change.
    monkeypatch.setattr("outrider_router.__main__.configure_logs", lambda *_: None)
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        for variable, value, message in (
            ("OUTRIDER_ROUTER_HOST", "0.0.0.0", "OUTRIDER_ROUTER_API_KEYS is not set"),
            ("OUTRIDER_ROUTER_PORT", "many", "OUTRIDER_ROUTER_PORT: "),
            ("OUTRIDER_ROUTER_WORKERS", "nohost", "OUTRIDER_ROUTER_WORKERS: "),
            ("OUTRIDER_LOG_LEVEL", "loud", "OUTRIDER_LOG_LEVEL: "),
            ("OUTRIDER_ROUTER_PORT", str(port), f"cannot listen on 127.0.0.1:{port}: "),
        ):
            with monkeypatch.context() as changed:
                changed.setenv(variable, value)
                assert main() == 2
            assert message in capsys.readouterr().err
