"""The planner service: the pure core with a clock, sessions, a store and metrics around it.

Knows when things happen: reports are answered within milliseconds, the store is served by one
task that nothing waits for. Does not know protobuf or HTTP, and decides nothing about plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

from outrider_planner.core.events import (
    Effect,
    FlushDeltas,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReadScope,
)
from outrider_planner.core.planner import Planner
from outrider_planner.core.types import Hello, StepReports
from outrider_planner.metrics import PlannerMetrics
from outrider_planner.sessions import Session
from outrider_planner.store.base import StatsStore, StoreUnavailableError
from outrider_planner.store.outbox import Outbox
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

# Reports that arrive together are planned together; no plan waits longer than this.
DEBOUNCE_S = 0.002
_TICK_S = 0.25
_STORE_RETRY_S = 1.0
_FINAL_FLUSH_LIMIT_S = 5.0

log = get_logger(__name__)


class PlannerService:
    """One per process. ``open``, ``report`` and ``close`` are called on the event loop's thread."""

    def __init__(
        self, config: PlannerConfig, store: StatsStore, clock: Clock, incarnation: str
    ) -> None:
        self.incarnation = incarnation
        self.planner = Planner(config)
        self.metrics = PlannerMetrics()
        self.store_up = True
        self._store = store
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._streams = count(1)
        self._outbox = Outbox(incarnation)
        self._wanted: set[str] = set()
        self._store_work = asyncio.Event()
        self._retry_s: float | None = None
        self._stopping = asyncio.Event()
        self._due: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._known: set[str] = set()
        self.metrics.store_up.set(1)

    @property
    def report_interval_ms(self) -> int:
        """What a worker is told before its first plan."""
        return self.planner.config.report_interval_ms

    # Streams ----------------------------------------------------------------------------------

    def open(self, hello: Hello) -> Session:
        """Admits a worker; its first plan is waiting in the session.

        Raises:
            HelloRefusedError: the hello cannot be served.
        """
        session = Session(hello.worker_incarnation, next(self._streams))
        effects = self.planner.on_hello(hello, session.stream, self._clock.monotonic_s())
        older = self._sessions.get(session.incarnation)
        if older is not None:
            older.end("a younger stream of this worker took over")
        self._sessions[session.incarnation] = session
        self._apply(effects)
        self._show_workers()
        log.info("worker joined", worker=session.incarnation, deployment=hello.deployment)
        return session

    def report(self, session: Session, report: StepReports) -> None:
        """Counts a report and plans anew within the debounce time."""
        now_s = self._clock.monotonic_s()
        outcome = self.planner.on_reports(session.incarnation, session.stream, report, now_s)
        worker = session.incarnation
        self.metrics.reports.labels(worker).inc()
        self.metrics.dropped.labels(worker).inc(outcome.dropped_rounds)
        self.metrics.clamps.labels(worker).inc(outcome.clamps)
        self.metrics.trips.labels(worker).inc(outcome.guard_trips)
        for reason, number in outcome.rejected.items():
            self.metrics.rejected.labels(reason).inc(number)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._replan)

    def malformed(self) -> None:
        """Counts a message that could not be read at all."""
        self.metrics.rejected.labels("malformed").inc()

    def close(self, session: Session) -> None:
        """A stream ended, for whatever reason."""
        if self._sessions.get(session.incarnation) is session:
            del self._sessions[session.incarnation]
        self.planner.on_gone(session.incarnation, session.stream, self._clock.monotonic_s())
        self._show_workers()
        log.info("worker stream ended", worker=session.incarnation, reason=session.ended)

    # Life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the ticker and the store's task."""
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._serve_store())]

    async def stop(self) -> None:
        """Ends all streams, flushes what is left, and closes the store."""
        self._stopping.set()
        self._store_work.set()
        for session in list(self._sessions.values()):
            session.end("the planner is stopping")
        if self._due is not None:
            self._due.cancel()
        ticker, store = self._tasks
        ticker.cancel()
        with suppress(asyncio.CancelledError):
            await ticker
        # Not cancelled: its calls end by their own timeouts, and a cut one would be unanswered.
        await asyncio.wait([store], timeout=_FINAL_FLUSH_LIMIT_S)
        await self._store.close()

    def refresh_metrics(self) -> None:
        """Brings every gauge up to date; called for each scrape."""
        now_s = self._clock.monotonic_s()
        for gone in self._known - self.planner.workers.keys():
            self.metrics.forget(gone)
        self._known = set(self.planner.workers)
        for incarnation, worker in self.planner.workers.items():
            self.metrics.refresh(incarnation, worker, now_s)

    def now_s(self) -> float:
        """The service's monotonic time."""
        return self._clock.monotonic_s()

    # Inside -----------------------------------------------------------------------------------

    def _replan(self) -> None:
        self._due = None
        self._apply(self.planner.replan(self._clock.monotonic_s()))

    async def _tick(self) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            self._apply(self.planner.on_tick(now_s))
            if self._retry_s is not None and now_s >= self._retry_s:
                self._retry_s = None
                self._store_work.set()
            await self._clock.sleep(_TICK_S)

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case PushPlan(incarnation, stream, plan):
                    session = self._sessions.get(incarnation)
                    if session is not None and session.stream == stream:
                        session.offer(plan)
                        self.metrics.plans.labels(incarnation).inc()
                case FlushDeltas(scope, fields):
                    self._outbox.put(scope, fields)
                    self._store_work.set()
                case ReadScope(scope):
                    self._wanted.add(scope)
                    self._store_work.set()
                case HoldPlan(incarnation, reason):
                    self.metrics.rejected.labels(reason).inc()
                    log.warning("plan held", worker=incarnation, reason=reason)

    async def _serve_store(self) -> None:
        """The only task that talks to the store; planning never waits for it."""
        while not self._stopping.is_set():
            await self._store_work.wait()
            self._store_work.clear()
            if not await self._exchange():
                self._retry_s = self._clock.monotonic_s() + _STORE_RETRY_S
        self._apply(self.planner.flush())
        await self._exchange()

    async def _exchange(self) -> bool:
        """Sends what waits and reads what is wanted; False when the store is away."""
        try:
            for scope in self._outbox.scopes():
                await self._send(scope)
            for scope in sorted(self._wanted):
                buckets = await self._store.buckets(scope)
                self._wanted.discard(scope)
                self.planner.on_store_snapshot(scope, buckets)
            self._apply(self.planner.replan(self._clock.monotonic_s()))
        except StoreUnavailableError as error:
            self._set_store_up(False, str(error))
            return False
        self._set_store_up(True)
        return True

    async def _send(self, scope: str) -> None:
        """The unanswered batch first, then what gathered behind it."""
        while batch := self._outbox.batch(scope):
            try:
                applied = await self._store.add(scope, batch)
            except StoreUnavailableError:
                self.metrics.flushes.labels("unanswered").inc()
                raise
            self._outbox.acknowledge(scope, batch)
            self.metrics.flushes.labels("applied" if applied else "known").inc()

    def _set_store_up(self, up: bool, why: str = "") -> None:
        if up != self.store_up:
            log.warning("store is back" if up else "store is away", reason=why)
        self.store_up = up
        self.metrics.store_up.set(int(up))

    def _show_workers(self) -> None:
        self.metrics.workers.set(len(self._sessions))
