"""The router's workers, one by one: connections, what this router has there, and their breakers.

Workers come and go with discovery. One that is gone gets nothing new and is let go once its last
choice has ended. Addresses are where they are found, lives (incarnations) tell them apart: one with
two addresses is one worker. Knows no models and makes no choice.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from outrider_router.routing.breaker import Breaker
from outrider_router.routing.discovery import Discovery
from outrider_router.routing.policy import Candidate, Demand
from outrider_router.worker_client import WorkerClient
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger
from outrider_runtime.supervision import keep_going

log = get_logger(__name__)


@dataclass
class Worker:
    """One worker and what this router has there."""

    client: WorkerClient
    breaker: Breaker = field(default_factory=Breaker)
    in_flight: int = 0
    kv_tokens: int = 0
    leaving: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Its life, whatever addresses lead to it; the address until it has described itself."""
        status = self.client.status
        return (status and status.incarnation) or self.client.address

    @property
    def trouble(self) -> str | None:
        """Why nothing new may be sent to it; None if it is ready."""
        return "it is no longer among the workers" if self.leaving else self.client.trouble

    def candidate(self, prefix_tokens: int = 0) -> Candidate:
        """Its load as the policy wants it."""
        address, status = self.client.address, self.client.status
        if status is None:
            return Candidate(address, self.in_flight, 0)
        return Candidate(
            address=address,
            in_flight=self.in_flight,
            reported=status.running_requests + status.waiting_requests,
            slots=status.max_running_requests,
            own_kv_tokens=self.kv_tokens,
            kv_used_tokens=status.kv_used_tokens,
            kv_capacity_tokens=status.kv_capacity_tokens,
            prefix_tokens=prefix_tokens,
        )


class Hold:
    """A share of a worker, given back exactly once however often it is asked."""

    def __init__(self, worker: Worker, demand: Demand) -> None:
        self.worker = worker
        self._demand: Demand | None = demand
        worker.in_flight += demand.choices
        worker.kv_tokens += demand.kv_tokens

    def release(self) -> None:
        """Give it back."""
        demand, self._demand = self._demand, None
        if demand is not None:
            self.worker.in_flight -= demand.choices
            self.worker.kv_tokens -= demand.kv_tokens


class Fleet:
    """All workers; iterating gives each of them once.

    Attributes:
        workers: what was found, by address.

    Args:
        discovery: says which there are.
        connect: makes the client of an address.
        forget: called with the address of a worker that was let go.
        clock: where time comes from.
    """

    def __init__(
        self,
        discovery: Discovery,
        connect: Callable[[str], WorkerClient],
        forget: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._discovery = discovery
        self._connect = connect
        self._forget = forget
        self._clock = clock
        self._following: asyncio.Task[None] | None = None
        self._running = False
        self.workers: dict[str, Worker] = {}
        self._sync(discovery.fixed)

    def __iter__(self) -> Iterator[Worker]:
        chosen: dict[str, Worker] = {}
        for worker in self.workers.values():
            twin = chosen.get(worker.name)
            if twin is None or (twin.trouble and not worker.trouble):
                chosen[worker.name] = worker
        return iter(chosen.values())

    def start(self) -> None:
        """Begin to connect."""
        self._running = True
        for worker in self.workers.values():
            worker.task = asyncio.create_task(worker.client.run())
        follow = partial(self._discovery.follow, self._sync)
        self._following = keep_going("discovery", follow, self._clock)

    async def stop(self) -> None:
        """Disconnect; choices still on a worker fail."""
        self._running = False
        tasks: list[asyncio.Task[Any]] = [w.task for w in self.workers.values() if w.task]
        tasks += [self._following] if self._following else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def running(self) -> bool:
        """False before the start and once everything ends: nobody new will turn up."""
        return self._running

    def _sync(self, addresses: Collection[str]) -> None:
        """Take in who is new, let go of who has left and has nothing to do."""
        for address in addresses:
            if address not in self.workers:
                self.workers[address] = self._new(address)
        for address, worker in list(self.workers.items()):
            worker.leaving = address not in addresses
            if worker.leaving and not worker.in_flight:
                self._let_go(address)

    def _new(self, address: str) -> Worker:
        worker = Worker(self._connect(address))
        if self._running:
            log.info("worker_found", worker=address)
            worker.task = asyncio.create_task(worker.client.run())
        return worker

    def _let_go(self, address: str) -> None:
        worker = self.workers.pop(address)
        log.info("worker_let_go", worker=address)
        if worker.task:
            worker.task.cancel()
        self._forget(address)
