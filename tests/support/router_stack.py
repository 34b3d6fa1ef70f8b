"""A real router over HTTP in the test's own event loop, in front of fake workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import uvicorn

from outrider_router.app import build_state, create_app
from outrider_router.settings import RouterSettings
from outrider_router.state import RouterState
from tests.support.fake_worker import FakeWorker


@dataclass(frozen=True)
class RunningRouter:
    """A router that listens, and clients for it."""

    state: RouterState
    url: str
    http: httpx2.AsyncClient
    client: openai.AsyncOpenAI

    async def metric(self, name: str, **labels: str) -> float:
        """One sample's value, 0 if it is not there."""
        value = self.state.series.get_sample_value(name, labels)
        return 0.0 if value is None else value

    async def until_ready(self, limit_s: float = 10.0) -> None:
        """Wait for `/ready`."""
        await until(lambda: self.state.trouble() is None, limit_s, "ready")

    def settled(self) -> bool:
        """Nothing is in flight anywhere in the router."""
        workers = self.state.registry.workers.values()
        return (
            self.state.admission.choices == 0
            and self.state.admission.prompt_tokens == 0
            and all(w.in_flight == 0 and w.client.tracked_choices == 0 for w in workers)
        )


async def until(condition: Any, limit_s: float, what: str) -> None:
    """Poll a condition of the same event loop; AssertionError after the limit."""
    end_s = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running_router(
    *workers: FakeWorker | str, ready: bool = True, api_key: str = "none", **settings: Any
) -> AsyncIterator[RunningRouter]:
    """Run a router for these workers; waits until it is ready unless told otherwise."""
    addresses = tuple(w if isinstance(w, str) else w.address for w in workers)
    state = build_state(RouterSettings(workers=addresses, **settings))
    config = uvicorn.Config(
        create_app(state), port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    try:
        await until(lambda: server.started or task.done(), 10, "listening")
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        async with (
            # Plain HTTP: reading the machine's certificates would only take time.
            httpx2.AsyncClient(base_url=url, timeout=20, verify=False) as http,
            openai.AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key=api_key,
                max_retries=0,
                http_client=httpx2.AsyncClient(timeout=20, verify=False),
            ) as client,
        ):
            router = RunningRouter(state, url, http, client)
            if ready:
                await router.until_ready()
            yield router
    finally:
        server.should_exit = True
        await task
