"""A router as a process of its own, in front of fake workers of the test's event loop."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fake_worker import FakeWorker
from tests.support.net import LOOPBACK, free_ports

_PREFIX = "outrider_router_"
_START_LIMIT_S = 60.0


@dataclass
class RouterProcess:
    """The process, and a client for it."""

    process: asyncio.subprocess.Process
    port: int
    http: httpx2.AsyncClient

    async def until_ready(self) -> None:
        """Wait for `/ready`; TimeoutError after the limit."""
        async with asyncio.timeout(_START_LIMIT_S):
            while not await self._is_ready():
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        try:
            return (await self.http.get("/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def until_idle(self, limit_s: float = 15.0) -> None:
        """Wait until nothing is in flight and every request has its outcome."""
        async with asyncio.timeout(limit_s):
            while not _is_idle(await self.samples()):
                await asyncio.sleep(0.05)

    async def samples(self) -> dict[str, float]:
        """The router's series, each summed over its labels, and `outcome:NAME` for each outcome."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families((await self.http.get("/metrics")).text):
            for sample in family.samples:
                name = sample.name.removeprefix(_PREFIX)
                found[name] = found.get(name, 0.0) + sample.value
                if name == "requests_total":
                    found[f"outcome:{sample.labels['outcome']}"] = sample.value
        return found

    @property
    def resident_bytes(self) -> int:
        """Memory of the process that is in use now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _is_idle(samples: dict[str, float]) -> bool:
    gauges = ("choices_in_flight", "requests_waiting", "worker_choices_in_flight")
    ended = samples["requests_total"] == samples["requests_started_total"]
    return ended and not any(samples[name] for name in gauges)


@asynccontextmanager
async def router_process(*workers: FakeWorker, **settings: str) -> AsyncIterator[RouterProcess]:
    """Start a router for these workers; `settings` are variables, complete with their prefix."""
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "OUTRIDER_ROUTER_PORT": str(port),
        "OUTRIDER_ROUTER_WORKERS": ",".join(worker.address for worker in workers),
        **settings,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider_router"),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=60) as http:
            yield RouterProcess(process, port, http)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
