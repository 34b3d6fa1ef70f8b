"""The only task that talks to the store: what waits is sent, what is wanted is read.

Knows when to try again, and that one name's failure is no other's. Does not know what is stored,
nor which store it is. Planning never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from outrider_planner.store.base import (
    LogLimits,
    PlannerStore,
    StoreRefusedError,
    StoreUnavailableError,
    Value,
)
from outrider_planner.store.errands import (
    Buckets,
    Errands,
    LogErrands,
    Outcome,
    SumsErrands,
    ValueErrands,
)
from outrider_planner.store.outbox import Keeping
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

__all__ = ["RETRY_S", "Buckets", "Outcome", "StoreLink"]

RETRY_S = 1.0
_FINAL_FLUSH_LIMIT_S = 5.0
# A second name without an answer: the store is away, and every other one would wait in vain.
_MOST_UNANSWERED = 2

log = get_logger(__name__)


class StoreLink:
    """Calls back with what was read, and with every outcome; ``up`` is False until contact."""

    def __init__(
        self,
        store: PlannerStore,
        clock: Clock,
        writer: str,
        on_buckets: Callable[[str, Buckets], None],
        on_outcome: Callable[[Outcome], None],
        on_value: Callable[[str, Value | None], None],
    ) -> None:
        self.up = False
        self._store = store
        self._clock = clock
        self._sums = SumsErrands(store, writer, on_buckets, on_outcome)
        self._values = ValueErrands(store, on_value, on_outcome)
        self._logs = LogErrands(store, writer, on_outcome)
        self._on_outcome = on_outcome
        self._troubled: set[str] = set()
        self._work = asyncio.Event()
        self._work.set()
        self._retry_s: float | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def log_dropped(self) -> int:
        """Log entries that found no room while the store was away."""
        return self._logs.dropped

    def put(self, scope: str, fields: Mapping[str, int]) -> None:
        """Adds sums to what will be sent."""
        self._sums.outbox.put(scope, fields)
        self._work.set()

    def want(self, scope: str) -> None:
        """Asks for a scope to be read."""
        self._sums.wanted.add(scope)
        self._work.set()

    def keep(self, key: str, value: Value, keep_s: float | None) -> None:
        """Asks for a value to be kept (``ValueStore.keep``); what then is there is called back."""
        self._values.box.keep(key, Keeping(value, keep_s))
        self._work.set()

    def ask(self, key: str) -> None:
        """Asks for a value to be read and called back, None where nothing is kept."""
        self._values.box.ask(key)
        self._work.set()

    def log(self, name: str, entry: str, limits: LogLimits) -> None:
        """Adds an entry to what will be appended; it goes with the next turn."""
        self._logs.put(name, entry, limits)

    def forget(self, scope: str) -> None:
        """Nobody needs this scope any more; what waits to be sent still is."""
        self._sums.wanted.discard(scope)
        self._troubled.discard(scope)
        self._store.forget(scope)

    def on_tick(self, now_s: float) -> None:
        """Sends what was logged, and tries again what failed once its time has come."""
        if self._retry_s is None:
            if self._logs.names():
                self._work.set()
        elif now_s >= self._retry_s:
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
        """One turn over all names, those that failed before last; False if any failed."""
        turns = self._turns()
        served = unanswered = 0
        for name, turn in turns:
            outcome = await self._tried(name, turn)
            served += outcome is None
            unanswered += outcome is Outcome.UNANSWERED
            if unanswered >= _MOST_UNANSWERED:
                break
        if turns:
            self.up = served > 0
        return served == len(turns)

    def _turns(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        kinds: tuple[Errands, ...] = (self._values, self._sums, self._logs)
        turns: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            (name, partial(kind.run, name)) for kind in kinds for name in sorted(kind.names())
        ]
        if not self.up and not turns:
            return [("first contact", self._store.ping)]
        return sorted(turns, key=lambda turn: turn[0] in self._troubled)

    async def _tried(self, name: str, turn: Callable[[], Awaitable[None]]) -> Outcome | None:
        """None, or how it failed. Nothing that a turn raises may end the task."""
        try:
            await turn()
        except StoreUnavailableError as error:
            refused = isinstance(error, StoreRefusedError)
            outcome, why = Outcome.REFUSED if refused else Outcome.UNANSWERED, str(error)
        except Exception as error:
            outcome, why = Outcome.FAILED, repr(error)
        else:
            if name in self._troubled:
                log.info("store_serves_again", name=name)
            self._troubled.discard(name)
            return None
        if name not in self._troubled:
            log.warning("store_trouble", name=name, outcome=outcome.value, reason=why)
        self._troubled.add(name)
        self._on_outcome(outcome)
        return outcome
