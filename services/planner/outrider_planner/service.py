"""The planner service: the pure core with a clock, sessions, a store and metrics around it.

Knows when things happen: reports are answered within milliseconds, and between two plans every
stream has its turn. Does not know protobuf or HTTP, and decides nothing about plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from outrider_planner.core.events import (
    Effect,
    FlushDeltas,
    ForgetScope,
    ForgetWorker,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReadCosts,
    ReadScope,
    ReadSettings,
    RefuseStored,
    StoreCosts,
    StoreSettings,
    WarmStart,
)
from outrider_planner.core.planner import Planner
from outrider_planner.core.settings import DeploymentSettings
from outrider_planner.core.types import Hello, StepReports
from outrider_planner.log.journal import LogJournal, Sink
from outrider_planner.log.recorder import RecordedPlanner
from outrider_planner.metrics import PlannerMetrics
from outrider_planner.sessions import Session, Takeovers
from outrider_planner.store.base import KEEP_S, PlannerStore, Value
from outrider_planner.store.link import Buckets, Outcome, StoreLink
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

# Reports that arrive together are planned together; no plan waits longer than this.
DEBOUNCE_S = 0.005
# Of the event loop's time.
SHADOW_SHARE = 0.05
_TICK_S = 0.25
# Keys of values in the store.
_SETTINGS, _COSTS = "settings:", "costs:"

log = get_logger(__name__)


class PlannerService:
    """One per process. ``open``, ``report`` and ``close`` are called on the event loop's thread."""

    def __init__(
        self,
        config: PlannerConfig,
        store: PlannerStore,
        clock: Clock,
        incarnation: str,
        open_log: Callable[[StoreLink], Sink] | None = None,
    ) -> None:
        """``open_log``: where decisions are logged; None for nowhere."""
        self.incarnation = incarnation
        self.metrics = PlannerMetrics()
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._takeovers = Takeovers()
        # Workers whose latest reports are in no plan yet, and since when.
        self._waiting: dict[str, float] = {}
        self._streams = count(1)
        self._link = StoreLink(
            store, clock, incarnation, self._on_buckets, self._on_outcome, self._on_value
        )
        self._journal = LogJournal(open_log(self._link), incarnation) if open_log else None
        self.planner = RecordedPlanner(config, self._journal) if self._journal else Planner(config)
        self._next_shadow_s = float("-inf")
        self._news = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def report_interval_ms(self) -> int:
        """What a worker is told before its first plan."""
        return self.planner.config.report_interval_ms

    @property
    def store_up(self) -> bool:
        """Whether the store served when it was last asked; False before the first contact."""
        return self._link.up

    # Streams ----------------------------------------------------------------------------------

    def open(self, hello: Hello) -> Session:
        """Admits a worker; its first plan follows within milliseconds.

        Raises:
            HelloRefusedError: the hello cannot be served.
        """
        session = Session(hello.worker_incarnation, next(self._streams))
        older = self._sessions.get(session.incarnation)
        if older is not None:
            self._takeovers.count(session.incarnation, self.now_s())
        effects = self.planner.on_hello(hello, session.stream, self.now_s())
        if older is not None:
            older.end("a younger stream of this worker took over")
        self._sessions[session.incarnation] = session
        self._apply(effects)
        self._news.set()
        log.info("worker_joined", worker=session.incarnation, deployment=hello.deployment)
        return session

    def report(self, session: Session, report: StepReports) -> None:
        """Counts a report; a plan follows within milliseconds if it brought news."""
        worker = session.incarnation
        outcome = self.planner.on_reports(worker, session.stream, report, self.now_s())
        self.metrics.count(worker, outcome)
        known = self.planner.workers.get(worker)
        # What brought no news needs no plan, and what counts for the store alone gets none.
        if known is not None and known.dirty and known.last_full_s == known.last_report_s:
            self._waiting.setdefault(worker, self.now_s())
        self._news.set()

    def malformed(self) -> None:
        """Counts a message that could not be read at all."""
        self.metrics.rejected.labels("malformed").inc()

    def close(self, session: Session) -> None:
        """A stream ended, for whatever reason."""
        if self._sessions.get(session.incarnation) is session:
            del self._sessions[session.incarnation]
        self.planner.on_gone(session.incarnation, session.stream, self.now_s())
        log.info("worker_stream_ended", worker=session.incarnation, reason=session.ended)

    # Life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the ticker, the planning task and the store's task."""
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._plan())]
        self._link.start()
        if self._journal is not None:
            self._journal.start()

    async def stop(self) -> None:
        """Ends all streams, flushes what is left, and closes the store."""
        for session in list(self._sessions.values()):
            session.end("the planner is stopping")
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with _logged("last flush"):
            self._apply(self.planner.flush())
        if self._journal is not None:
            await self._journal.stop()
        await self._link.stop()

    def put_settings(self, deployment: str, settings: DeploymentSettings) -> DeploymentSettings:
        """Puts a deployment's settings in force and has them stored; its workers are told at once.

        Raises:
            SettingsConflictError: somebody else changed them meanwhile.
            SettingsError: they cannot be used.
        """
        self._apply(self.planner.on_settings(deployment, settings, self.now_s()))
        self._news.set()
        kept = self.planner.settings.of(deployment).settings
        log.info("settings_changed", deployment=deployment, settings=kept.to_json())
        return kept

    def refresh_metrics(self) -> None:
        """Brings every gauge up to date; called for each scrape."""
        self.metrics.store_up.set(int(self.store_up))
        self.metrics.workers.set(len(self._sessions))
        if self._journal is not None:
            self.metrics.refresh_log(self._journal.written, self._journal.lost)
        for incarnation, worker in self.planner.workers.items():
            self.metrics.refresh(incarnation, worker, self.now_s())
            self.metrics.refresh_shadows(incarnation, self.planner.shadows.of(incarnation))

    def now_s(self) -> float:
        """The service's monotonic time."""
        return self._clock.monotonic_s()

    # Inside -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            with _logged("tick"):
                self._apply(self.planner.on_tick(self.now_s()))
                self._evaluate_shadow()
            self._link.on_tick(self.now_s())
            await self._clock.sleep(_TICK_S)

    def _evaluate_shadow(self) -> None:
        """One policy of one worker, as long as shadows stay within their share of the loop."""
        began_s = self.now_s()
        if began_s >= self._next_shadow_s:
            self.planner.shadows.evaluate_next(self.planner.basis, began_s)
            took_s = self.now_s() - began_s
            self._next_shadow_s = began_s + took_s / SHADOW_SHARE

    async def _plan(self) -> None:
        """One worker at a time, the longest waiting first; the loop goes round in between."""
        while True:
            await self._news.wait()
            await asyncio.sleep(DEBOUNCE_S)
            self._news.clear()
            with _logged("planning"):
                while (due := self.planner.next_due()) is not None and due[0] <= self.now_s():
                    self._plan_one(due[1])
                    await asyncio.sleep(0)
                self._set_alarm(due)

    def _plan_one(self, incarnation: str) -> None:
        began_s = self.now_s()
        self._apply(self.planner.plan(incarnation, began_s))
        now_s = self.now_s()
        self.planner.planned(incarnation, now_s, now_s - began_s)
        self._note_waits(now_s)

    def _note_waits(self, now_s: float) -> None:
        """Whoever is up to date waits no more; a worker that left never gets its plan."""
        workers = self.planner.workers
        for name in [n for n in self._waiting if n not in workers or not workers[n].dirty]:
            self.metrics.report_to_plan.observe(now_s - self._waiting.pop(name))

    def _set_alarm(self, due: tuple[float, str] | None) -> None:
        """Wakes the planning task when the next worker's pause is over."""
        if self._alarm is not None:
            self._alarm.cancel()
        if due is not None:
            wait_s = max(due[0] - self.now_s(), DEBOUNCE_S)
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._news.set)

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case PushPlan(incarnation, stream, plan):
                    session = self._sessions.get(incarnation)
                    if session is not None and session.stream == stream:
                        session.offer(plan)
                        self.metrics.plans.labels(incarnation).inc()
                case FlushDeltas(scope, fields):
                    self._link.put(scope, fields)
                case ReadScope(scope):
                    self._link.want(scope)
                case StoreSettings(deployment, version, text):
                    self._link.keep(f"{_SETTINGS}{deployment}", Value(version, text), None)
                case ReadSettings(deployment):
                    self._link.ask(f"{_SETTINGS}{deployment}")
                case StoreCosts(digest, text):
                    self._link.keep(f"{_COSTS}{digest}", Value(1, text), KEEP_S)
                case ReadCosts(digest):
                    self._link.ask(f"{_COSTS}{digest}")
                case RefuseStored(scope, reason):
                    log.warning("stored_value_refused", scope=scope, reason=reason)
                case WarmStart(incarnation, deployment, sentence):
                    log.info("warm_start", worker=incarnation, deployment=deployment, why=sentence)
                case ForgetScope(scope):
                    self._link.forget(scope)
                case ForgetWorker(incarnation):
                    self.metrics.forget(incarnation)
                case HoldPlan(incarnation, reason, error):
                    self.metrics.held.labels(reason).inc()
                    log.warning("plan_held", worker=incarnation, reason=reason, exc_info=error)

    def _on_buckets(self, scope: str, buckets: Buckets) -> None:
        self.planner.on_store_snapshot(scope, buckets)
        self._news.set()

    def _on_value(self, key: str, value: Value | None) -> None:
        text = None if value is None else value.text
        if key.startswith(_SETTINGS):
            self._apply(self.planner.on_stored_settings(key.removeprefix(_SETTINGS), text))
        elif key.startswith(_COSTS):
            self._apply(self.planner.on_stored_costs(key.removeprefix(_COSTS), text))
        self._news.set()

    def _on_outcome(self, outcome: Outcome) -> None:
        self.metrics.exchanges.labels(outcome.value).inc()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """A failure is logged and ends this turn of a task, never the task."""
    try:
        yield
    except Exception:
        log.exception("planner_task_failed", what=what)
