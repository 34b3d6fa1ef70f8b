"""The only task that talks to the store: what waits is sent, what is wanted is read.

Knows when to try again, and that one scope's failure is no other's. Does not know what is stored,
nor which store it is. Planning never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from outrider_planner.store.base import StatsStore, StoreRefusedError, StoreUnavailableError
from outrider_planner.store.outbox import Outbox
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

RETRY_S = 1.0
_FINAL_FLUSH_LIMIT_S = 5.0
# A second scope without an answer: the store is away, and every other one would wait in vain.
_MOST_UNANSWERED = 2

Buckets = tuple[Mapping[str, int], ...]
log = get_logger(__name__)


class Outcome(Enum):
    """How a batch, or a read, ended; the values are those of the metrics."""

    APPLIED = "applied"
    KNOWN = "known"
    READ = "read"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    FAILED = "failed"


class StoreLink:
    """Calls back with what was read, and with every outcome; ``up`` is False until contact."""

    def __init__(
        self,
        store: StatsStore,
        clock: Clock,
        writer: str,
        on_buckets: Callable[[str, Buckets], None],
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self.up = False
        self._store = store
        self._clock = clock
        self._outbox = Outbox(writer)
        self._on_buckets = on_buckets
        self._on_outcome = on_outcome
        self._wanted: set[str] = set()
        self._troubled: set[str] = set()
        self._work = asyncio.Event()
        self._work.set()
        self._retry_s: float | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def put(self, scope: str, fields: Mapping[str, int]) -> None:
        """Adds sums to what will be sent."""
        self._outbox.put(scope, fields)
        self._work.set()

    def want(self, scope: str) -> None:
        """Asks for a scope to be read."""
        self._wanted.add(scope)
        self._work.set()

    def forget(self, scope: str) -> None:
        """Nobody needs this scope any more; what waits to be sent still is."""
        self._wanted.discard(scope)
        self._troubled.discard(scope)
        self._store.forget(scope)

    def on_tick(self, now_s: float) -> None:
        """Tries again what failed, once its time has come."""
        if self._retry_s is not None and now_s >= self._retry_s:
            self._retry_s = None
            self._work.set()

    def start(self) -> None:
        """Begins with a first contact."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Sends what is left, within a limit, and closes the store.

        Not cancelled: calls end by their own timeouts, and a cut one would be unanswered.
        """
        self._stopping = True
        self._work.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_FINAL_FLUSH_LIMIT_S)
        await self._store.close()

    async def _run(self) -> None:
        last = False
        while not last:
            await self._work.wait()
            self._work.clear()
            last = self._stopping
            if not await self._exchange():
                self._retry_s = self._clock.monotonic_s() + RETRY_S

    async def _exchange(self) -> bool:
        """One turn over all scopes, those that failed before last; False if any failed."""
        names = {*self._outbox.scopes(), *self._wanted}
        turns = [(name, self._one(name)) for name in sorted(names, key=self._turn)]
        if not self.up and not turns:
            turns = [("first contact", self._store.ping)]
        served = unanswered = 0
        for scope, turn in turns:
            outcome = await self._tried(scope, turn)
            served += outcome is None
            unanswered += outcome is Outcome.UNANSWERED
            if unanswered >= _MOST_UNANSWERED:
                break
        if turns:
            self.up = served > 0
        return served == len(turns)

    def _turn(self, scope: str) -> tuple[bool, str]:
        return scope in self._troubled, scope

    def _one(self, scope: str) -> Callable[[], Awaitable[None]]:
        async def turn() -> None:
            await self._send(scope)
            if scope in self._wanted:
                buckets = await self._store.buckets(scope)
                self._wanted.discard(scope)
                self._on_buckets(scope, buckets)
                self._on_outcome(Outcome.READ)

        return turn

    async def _send(self, scope: str) -> None:
        """The unanswered batch first, then what gathered behind it."""
        while batch := self._outbox.batch(scope):
            applied = await self._store.add(scope, batch)
            self._outbox.acknowledge(scope, batch)
            self._on_outcome(Outcome.APPLIED if applied else Outcome.KNOWN)

    async def _tried(self, scope: str, turn: Callable[[], Awaitable[None]]) -> Outcome | None:
        """None, or how it failed. Nothing that a scope raises may end the task."""
        try:
            await turn()
        except StoreUnavailableError as error:
            refused = isinstance(error, StoreRefusedError)
            outcome, why = Outcome.REFUSED if refused else Outcome.UNANSWERED, str(error)
        except Exception as error:
            outcome, why = Outcome.FAILED, repr(error)
        else:
            if scope in self._troubled:
                log.info("store serves again", scope=scope)
            self._troubled.discard(scope)
            return None
        if scope not in self._troubled:
            log.warning("store trouble", scope=scope, outcome=outcome.value, reason=why)
        self._troubled.add(scope)
        self._on_outcome(outcome)
        return outcome
