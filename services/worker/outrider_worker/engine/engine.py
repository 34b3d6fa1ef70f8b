"""The engine loop: the order of one step, and nothing else.

    outside state in → launch a round's forward → read the step before it → launch the rest
    (judgement, a prefill chunk, the next drafts) → news out

*In step* the host reads each step before it goes on; *ahead* it reads one step late, while the
device works on the next (engine.modes). A result is applied only to a request that is still in the
epoch it was launched in.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_worker.engine.budget import NO_DRAFTS, Budgeter, DraftKind
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.drafting import Drafters, Drafting
from outrider_worker.engine.flight import Flight
from outrider_worker.engine.guard import Guard, GuardRound
from outrider_worker.engine.inbox import Inbox
from outrider_worker.engine.launch import Launcher
from outrider_worker.engine.modes import DraftPlace, launch_mode
from outrider_worker.engine.off_cost import OffCost
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.records import LaunchMode, RoundRecord
from outrider_worker.engine.roster import Roster, RosterParts
from outrider_worker.engine.scheduler import Scheduler
from outrider_worker.engine.settle import Settler
from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import TokenNews
from outrider_worker.runner import Runner


@dataclass(frozen=True)
class EngineParts:
    """What the engine is put together from; each can be exchanged in a test."""

    runner: Runner
    scheduler: Scheduler
    pages: PageAccount
    plans: PlanBook
    guard: Guard
    costs: CostTable
    drafters: Drafters
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_draft_tokens: int


NewsSink = Callable[[int, Sequence[TokenNews]], None]
RecordSink = Callable[[RoundRecord], None]


class Engine:
    """Runs rounds. One thread calls `step`; others only use the inbox and the plan book."""

    def __init__(
        self,
        parts: EngineParts,
        on_news: NewsSink,
        on_record: RecordSink,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox = Inbox()
        self.rounds = 0
        self._parts = parts
        self._on_news = on_news
        self._on_record = on_record
        self._now_s = now_s
        self._flight: Flight | None = None
        self._settled_s = 0.0
        self._carried = NO_DRAFTS
        self._off = OffCost(parts.costs, parts.runner.bucket_rows)
        name = parts.drafters.name
        budgeter = Budgeter(
            name,
            parts.max_draft_tokens if name else 0,
            parts.scheduler.limits.max_rows_per_forward,
        )
        place = DraftPlace(parts.costs, parts.runner.bucket_rows)
        self._drafting = Drafting(parts.drafters, budgeter, place, parts.vocab_size)
        self._roster = Roster(
            RosterParts(
                parts.scheduler,
                parts.pages,
                parts.runner,
                self._drafting.feed,
                name,
                parts.eos_token_ids,
            )
        )
        self._launcher = Launcher(
            parts.runner, parts.scheduler, parts.pages, self._roster, budgeter, self._drafting
        )
        self._settler = Settler(self._roster, self._drafting, parts.eos_token_ids, parts.vocab_size)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, nothing is in flight, nothing has come in."""
        return self._parts.scheduler.idle and self._flight is None and self.inbox.empty

    def step(self, wait_s: float = 0.0) -> None:
        """One turn of the loop; waits for work at most `wait_s` when there is none."""
        nothing_to_do = self._parts.scheduler.idle and self._flight is None
        commands = self.inbox.drain(wait_s if nothing_to_do else 0.0)
        turn = self._open_turn()
        self._roster.take_in(commands, turn)
        self._roster.admit()
        drafts_on_host = self._decide(turn)
        if turn.mode is LaunchMode.IN_STEP:
            self._settle_flight()
        flight = self._launcher.begin(turn, self._flight)
        if self._flight is not None:
            self._settle_flight()
            flight.see_drafts()
        self._launcher.finish(flight, turn.drafted.tokens > 0 and not drafts_on_host)
        if turn.mode is LaunchMode.IN_STEP:
            self._read(flight)
            self._draft_on_host(turn, drafts_on_host)
            self._book(turn)
        else:
            self._flight = flight
        self._carried = turn.drafted
        news = self._roster.take_news()
        if news:
            self._on_news(self.rounds, news)

    def _open_turn(self) -> Turn:
        now_s = self._now_s()
        return Turn(self._parts.plans.in_force(now_s), started_s=now_s, carried=self._carried)

    def _decide(self, turn: Turn) -> bool:
        """How long the next drafts are and so how the step is launched; True: the host drafts."""
        scheduler, asynchronous = self._parts.scheduler, self._parts.runner.asynchronous
        requests = scheduler.decoding() or scheduler.running
        now_s = turn.started_s
        self._drafting.decide(turn, len(requests), lambda: self._parts.guard.permission(now_s))
        on_host = self._drafting.on_host(turn, requests, asynchronous)
        masked = any(request.constraint is not None for request in requests)
        turn.mode = launch_mode(asynchronous and bool(requests), on_host, masked)
        return on_host

    def _settle_flight(self) -> None:
        """Read the step in flight, if there is one, and write it down."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._read(flight)
            self._book(flight.turn)

    def _read(self, flight: Flight) -> None:
        """Wait for a step's results and apply them."""
        asked_s = self._now_s()
        result = flight.step.read()
        flight.turn.waited_s = self._now_s() - asked_s
        self._settler.settle(flight, result)

    def _draft_on_host(self, turn: Turn, wanted: bool) -> None:
        requests = self._parts.scheduler.decoding()
        if wanted:
            self._drafting.draft_on_host(requests, turn, self._now_s)
        else:
            self._drafting.rest(requests)

    def _book(self, turn: Turn) -> None:
        """Close the step: its record goes to whoever counts, its time to the guard's ledger."""
        now_s = self._now_s()
        # A step that ran ahead began, for the device, when the one before it was over.
        turn.started_s = max(turn.started_s, self._settled_s)
        self._settled_s = now_s
        if not turn.worked:
            return
        self.rounds += 1
        record = turn.record(self.rounds, now_s)
        if record.requests:
            self._drafting.observe(record)
            self._guard_round(record, turn, now_s)
        self._on_record(record)

    def _guard_round(self, record: RoundRecord, turn: Turn, now_s: float) -> None:
        times = record.times
        self._off.observe(record)
        guard, plain_rows = self._parts.guard, self._parts.runner.bucket_rows(record.requests)
        guard.thresholds = turn.plan.guard
        guard.observe(
            GuardRound(
                # A row wasted on one that had ended is the launch mode's loss, not the drafts'.
                requests=turn.served_requests,
                emitted_tokens=record.emitted_tokens,
                extra_rows=record.bucket_rows - plain_rows,
                speculative=record.carried_draft_tokens > 0,
                drafted=record.next_draft_tokens > 0,
                elapsed_s=times.total_s,
                plain_s=times.target_s + times.exposed_host_s,
                off_s=self._off.seconds(record),
                trial=DraftKind.TRIAL in (turn.carried.kind, turn.drafted.kind),
            ),
            now_s,
        )
