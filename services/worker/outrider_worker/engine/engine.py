"""The engine loop: the order of one step, and nothing else.

    outside state in → launch a round's forward → read the step before it → launch the rest
    (judgement, a prefill chunk, the next drafts) → news out

*In step* the host reads each step before it goes on; *ahead* it reads one step late, while the
device works on the next (engine.modes). A result is applied only to a request that is still in the
epoch it was launched in.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider_worker.engine.budget import DraftDecision
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.drafting import Drafting
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
from outrider_worker.engine.types import Request, TokenNews
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
        self._carried: Mapping[str, DraftDecision] = {}
        self._carried_on_host: frozenset[str] = frozenset()
        self._off = OffCost(parts.costs, parts.runner.bucket_rows)
        self._drafting = Drafting(
            parts.drafters,
            parts.guard,
            DraftPlace(parts.costs, parts.runner.bucket_rows),
            parts.vocab_size,
            parts.scheduler.limits.max_rows_per_forward,
        )
        self._roster = Roster(
            RosterParts(
                parts.scheduler, parts.pages, parts.runner, self._drafting, parts.eos_token_ids
            )
        )
        self._launcher = Launcher(
            parts.runner, parts.scheduler, parts.pages, self._roster, self._drafting
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
        self._drafting.look(turn, len(self._requests))
        self._roster.admit()
        self._decide(turn)
        if turn.mode is LaunchMode.IN_STEP:
            self._settle_flight()
        flight = self._launcher.begin(turn, self._flight)
        if self._flight is not None:
            self._settle_flight()
            flight.see_drafts()
        self._launcher.finish(flight)
        if turn.mode is LaunchMode.IN_STEP:
            self._read(flight)
            self._drafting.draft_on_host(
                self._parts.scheduler.decoding(), turn, turn.on_host, self._now_s
            )
            self._book(turn)
        else:
            self._flight = flight
        self._carried, self._carried_on_host = turn.drafted, turn.on_host
        news = self._roster.take_news()
        if news:
            self._on_news(self.rounds, news)

    @property
    def _requests(self) -> list[Request]:
        """Who decodes; before anybody does, who is going to."""
        return self._parts.scheduler.decoding() or self._parts.scheduler.running

    def _open_turn(self) -> Turn:
        now_s = self._now_s()
        return Turn(
            self._parts.plans.in_force(now_s),
            started_s=now_s,
            carried=self._carried,
            carried_on_host=self._carried_on_host,
        )

    def _decide(self, turn: Turn) -> None:
        """How long the next drafts are, who makes them, and so how the step is launched."""
        requests, asynchronous = self._requests, self._parts.runner.asynchronous
        self._drafting.decide(turn, requests)
        turn.on_host = self._drafting.on_host(turn, requests, asynchronous)
        masked = any(request.constraint is not None for request in requests)
        turn.mode = launch_mode(asynchronous and bool(requests), bool(turn.on_host), masked)

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
        times, tried = record.times, turn.on_trial and turn.tried_requests > 0
        self._off.observe(record)
        guard, plain_rows = self._parts.guard, self._parts.runner.bucket_rows(record.requests)
        guard.thresholds = turn.plan.guard
        guard.observe(
            GuardRound(
                # A row wasted on one that had ended is the launch mode's loss, not the drafts'.
                requests=turn.tried_requests if tried else turn.served_requests,
                emitted_tokens=turn.tried_tokens if tried else record.emitted_tokens,
                extra_rows=record.bucket_rows - plain_rows,
                speculative=record.carried_draft_tokens > 0,
                drafted=record.next_draft_tokens > 0 or times.feed_s > 0,
                elapsed_s=times.total_s + (self._others_s(record, turn) if tried else 0.0),
                plain_s=times.target_s + times.exposed_host_s,
                off_s=self._off.seconds(record),
                trial=turn.on_trial,
            ),
            now_s,
        )

    def _others_s(self, record: RoundRecord, turn: Turn) -> float:
        """What a round of a few that are tried out would take more if all drafted like them."""
        bucket_rows, requests = self._parts.runner.bucket_rows, record.requests
        drafts = record.verified_tokens * requests // turn.tried_requests
        context_tokens = record.request_context_tokens / requests
        rows = (record.bucket_rows, bucket_rows(requests + drafts))
        now_s, all_s = (self._parts.costs.target_s(each, context_tokens) for each in rows)
        return max(0.0, all_s - now_s)
