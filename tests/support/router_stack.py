"""A real router over HTTP in the test's own event loop, in front of fake workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from outrider_router.app import build_state
from outrider_router.metrics import OUTCOMES
from outrider_router.server import SEND_BUFFER_BYTES, make_server
from outrider_router.settings import RouterSettings
from outrider_router.state import RouterState
from outrider_runtime.clock import Clock, VirtualClock
from outrider_runtime.http import listen
from tests.support.fake_worker import FakeWorker

_TURN_S = 0.01


class HurriedClock(VirtualClock):
    """A clock at a multiple of the machine's pace, for what a router does by waiting.

    It counts turns of the event loop instead of reading the machine's time: where a busy machine
    leaves the whole process standing, this clock stands too, and nobody counts as silent who had no
    chance to speak.
    """

    def __init__(self, pace: float = 5.0) -> None:
        super().__init__()
        self._turn_s = _TURN_S * pace

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Time passes within this block."""
        passing = asyncio.create_task(self._pass())
        try:
            yield
        finally:
            passing.cancel()

    async def _pass(self) -> None:
        while True:
            await asyncio.sleep(_TURN_S)
            await self.advance(self._turn_s)


@dataclass
class RunningRouter:
    """A router that listens, and clients for it."""

    state: RouterState
    url: str
    http: httpx2.AsyncClient
    client: openai.AsyncOpenAI
    _counted: dict[Any, float] = field(default_factory=dict)

    async def metric(self, name: str, **labels: str) -> float:
        """One sample's value, 0 if it is not there; of counters what came since `forget`."""
        value = self.state.series.get_sample_value(name, labels) or 0.0
        return value - self._counted.get((name, *labels.items()), 0.0)

    def forget(self) -> None:
        """Let counters begin anew for the next test."""
        samples = [sample for one in self.state.series.collect() for sample in one.samples]
        counters = [sample for sample in samples if sample.name.endswith("_total")]
        self._counted = {(c.name, *c.labels.items()): c.value for c in counters}

    async def until_ready(self, limit_s: float = 10.0) -> None:
        """Wait for `/ready`."""
        await until(lambda: self.state.trouble() is None, limit_s, "ready")

    def settled(self) -> bool:
        """Nothing is in flight anywhere in the router, and every request has its outcome."""
        workers = self.state.registry.workers.values()
        return (
            self._unfinished() == 0
            and self.state.admission.choices == 0
            and self.state.admission.prompt_tokens == 0
            and all(w.in_flight == 0 and w.client.tracked_choices == 0 for w in workers)
        )

    def _unfinished(self) -> float:
        """Requests that have begun and have no outcome."""
        value = self.state.series.get_sample_value
        ended = [value("outrider_router_requests_total", {"outcome": name}) for name in OUTCOMES]
        started = value("outrider_router_requests_started_total") or 0.0
        return started - sum(one or 0.0 for one in ended)


async def until(condition: Any, limit_s: float, what: str) -> None:
    """Poll a condition of the same event loop; AssertionError after the limit."""
    end_s = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def _served(state: RouterState) -> AsyncIterator[str]:
    """The router's address while it is served."""
    listener = listen("127.0.0.1", 0, SEND_BUFFER_BYTES)
    server = make_server(state, timeout_graceful_shutdown=1)
    # Its main loop would only add the ticks it waits for: start and stop are called directly.
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup([listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown([listener])


@asynccontextmanager
async def running_router(
    *workers: FakeWorker | str,
    ready: bool = True,
    api_key: str = "none",
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[RunningRouter]:
    """Run a router for these workers; waits until it is ready unless told otherwise."""
    addresses = tuple(w if isinstance(w, str) else w.address for w in workers)
    state = build_state(RouterSettings(workers=addresses, **settings), clock)
    async with (
        clock.ticking() if isinstance(clock, HurriedClock) else nullcontext(),
        # Plain HTTP: reading the machine's certificates would only take time.
        _served(state) as url,
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


@dataclass(frozen=True)
class Stack:
    """One worker and a router in front of it, for tests that leave them as they were."""

    worker: FakeWorker
    router: RunningRouter

    def forget(self) -> None:
        """Be as new for the next test."""
        self.worker.forget()
        self.router.forget()

    async def until_idle(self) -> None:
        """Wait until nothing is in flight on either side."""
        await until(lambda: self.router.settled() and not self.worker.active, 3, "idle")


@asynccontextmanager
async def running_stack() -> AsyncIterator[Stack]:
    """A worker and a router with their usual settings."""
    async with FakeWorker() as worker, running_router(worker) as router:
        yield Stack(worker, router)
