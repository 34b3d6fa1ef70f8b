"""The engine loop: the order of one step, and nothing else.

    outside state in → one round (verify, commit) → one prefill forward → drafts for the next
    round → record booked → news out

Launch mode *in step*: the host reads a round's result before it drafts and launches the next one.
A result is applied only to a request that is still in the epoch it was launched in, so running
ahead changes the order here and no data structure.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_worker.engine.budget import NO_DRAFTS, Budgeter, DraftKind
from outrider_worker.engine.commit import commit_run, draft_room, stop_ids
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.guard import Guard, GuardRound
from outrider_worker.engine.inbox import Cancel, Command, DropOwner, EndAll, Inbox, Submit
from outrider_worker.engine.off_cost import OffCost
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.scheduler import Scheduler
from outrider_worker.engine.tables import prefill_table, round_table
from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import (
    NO_DRAFT,
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    Request,
    RequestRefused,
    RequestSpec,
    TokenNews,
)
from outrider_worker.runner import Runner
from outrider_worker.speculate.drafter import Ask, Drafter
from outrider_worker.speculate.select import chain_scores, pick_prefixes


@dataclass(frozen=True)
class EngineParts:
    """What the engine is put together from; each can be exchanged in a test."""

    runner: Runner
    scheduler: Scheduler
    pages: PageAccount
    plans: PlanBook
    guard: Guard
    costs: CostTable
    drafter: Drafter | None
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
        self._drafter_name = parts.drafter.traits.name if parts.drafter else ""
        self._budgeter = Budgeter(
            self._drafter_name,
            parts.max_draft_tokens if parts.drafter else 0,
            parts.scheduler.limits.max_rows_per_forward,
        )
        self._carried = NO_DRAFTS
        self._off = OffCost(parts.costs)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, nothing has come in."""
        return self._parts.scheduler.idle and self.inbox.empty

    def step(self, wait_s: float = 0.0) -> None:
        """One turn of the loop; waits for work at most `wait_s` when there is none."""
        commands = self.inbox.drain(wait_s if self._parts.scheduler.idle else 0.0)
        now_s = self._now_s()
        turn = Turn(plan=self._parts.plans.in_force(now_s), started_s=now_s, carried=self._carried)
        self._take_in(commands, turn)
        self._parts.scheduler.admit()
        self._round(turn)
        self._prefill(turn)
        self._draft(turn)
        if turn.requests or turn.prefill_tokens or turn.outcomes:
            self._book(turn)
        if turn.news:
            self._on_news(self.rounds, turn.news)

    def _take_in(self, commands: Sequence[Command], turn: Turn) -> None:
        """Apply what came in from outside, then end what has run out of time."""
        scheduler = self._parts.scheduler
        for command in commands:
            match command:
                case Submit(spec):
                    self._submit(spec, turn)
                case Cancel(owner, request_id, choice):
                    for key in scheduler.keys_of(owner, request_id):
                        if choice in (None, key.choice_index):
                            self._end(scheduler.get(key), Finish(FinishReason.CANCELLED), turn)
                case DropOwner(owner):
                    for key in scheduler.keys_of(owner):
                        self._forget(scheduler.get(key), turn)
                case EndAll(message):
                    for request in scheduler.everyone():
                        self._end(request, Failure(FailureCode.UNAVAILABLE, message), turn)
        for request in scheduler.overdue(turn.started_s):
            self._end(request, Failure(FailureCode.DEADLINE, "the deadline has passed"), turn)

    def _submit(self, spec: RequestSpec, turn: Turn) -> None:
        """Take a request in, or tell it why not.

        An id that is in use has one owner of its news: both end, for they cannot be told apart.
        """
        scheduler = self._parts.scheduler
        try:
            scheduler.submit(spec)
        except RequestRefused as refused:
            if scheduler.has(spec.key):
                self._end(scheduler.get(spec.key), refused.failure, turn)
            else:
                turn.news.append(TokenNews(spec.key, (), end=refused.failure))

    def _round(self, turn: Turn) -> None:
        """Verify the drafts at hand for every decoding request and commit what holds."""
        parts = self._parts
        turn.requests = parts.scheduler.decoding()
        if not turn.requests:
            return
        picked = self._pick(turn)
        for request, count in zip(turn.requests, picked, strict=True):
            parts.pages.reserve(request, request.committed + 1 + count)
        table = round_table(turn.requests, picked, parts.pages)
        turn.note_rows(table.forward)
        epochs = [request.epoch for request in turn.requests]
        result = parts.runner.launch_round(table).read()
        turn.target_s = result.target_s
        for request, epoch, count, accepted, run in zip(
            turn.requests, epochs, picked, result.accepted, result.emitted, strict=True
        ):
            if request.epoch == epoch:
                self._commit(request, count, accepted, run, turn)

    def _pick(self, turn: Turn) -> list[int]:
        """How many drafts of each request get a row."""
        lengths = [len(request.draft) for request in turn.requests]
        turn.pool_tokens = sum(lengths)
        decision = self._budgeter.verify(
            turn.plan, len(turn.requests), turn.carried, turn.pool_tokens
        )
        turn.clamped |= decision.clamped
        if decision.tokens >= turn.pool_tokens:
            return lengths
        chains = [chain_scores(r, turn.plan, self._drafter_name) for r in turn.requests]
        return pick_prefixes(chains, decision.tokens)

    def _commit(
        self, request: Request, verified: int, accepted: int, run: Sequence[int], turn: Turn
    ) -> None:
        """Give a request what its round brought; whatever lies behind its end is dropped."""
        stops = stop_ids(request, self._parts.eos_token_ids)
        commit = commit_run(run, accepted, request.room_tokens, stops)
        turn.note_draft(request, self._drafter_name, verified, commit.accepted_tokens)
        turn.accepted_tokens += commit.accepted_tokens
        request.draft = NO_DRAFT
        self._append(request, commit.token_ids)
        turn.emitted_tokens += len(commit.token_ids)
        self._report(request, commit.token_ids, commit.accepted_tokens, commit.finish, turn)

    def _prefill(self, turn: Turn) -> None:
        """One forward over the next prompt tokens; a finished prompt emits its first token."""
        parts = self._parts
        chunks = parts.scheduler.prefill_chunks()
        if not chunks:
            return
        started_s = self._now_s()
        for chunk in chunks:
            parts.pages.reserve(chunk.request, chunk.request.committed + chunk.tokens)
        result = parts.runner.launch_prefill(prefill_table(chunks, parts.pages)).read()
        completed = [chunk.request for chunk in chunks if chunk.completes]
        for chunk in chunks:
            self._feed(chunk.request, chunk.request.committed, chunk.tokens)
            chunk.request.committed += chunk.tokens
        for request, token_id in zip(completed, result.token_ids, strict=True):
            stops = stop_ids(request, parts.eos_token_ids)
            commit = commit_run([token_id], 0, request.room_tokens, stops)
            self._append(request, commit.token_ids)
            turn.first_tokens += len(commit.token_ids)
            self._report(request, commit.token_ids, 0, commit.finish, turn)
        turn.prefill_tokens = sum(chunk.tokens for chunk in chunks)
        turn.prefill_s = self._now_s() - started_s

    def _draft(self, turn: Turn) -> None:
        """Draft for the next round, as far as plan, guard and the requests themselves allow."""
        drafter, requests = self._parts.drafter, self._parts.scheduler.decoding()
        self._carried = NO_DRAFTS
        if drafter is None or not requests:
            return
        permission = self._parts.guard.permission(self._now_s())
        decision = self._budgeter.next_draft(turn.plan, len(requests), permission)
        turn.clamped |= decision.clamped
        if decision.tokens == 0:
            return
        asks = [
            Ask(request.spec.key, self._ask_tokens(request, decision.tokens, turn))
            for request in requests
        ]
        started_s = self._now_s()
        drafts = drafter.propose(asks)
        turn.draft_s = self._now_s() - started_s
        for request, ask, draft in zip(requests, asks, drafts, strict=True):
            request.draft = draft.cut(ask.tokens, self._parts.vocab_size)
        self._carried = turn.drafted = decision

    def _ask_tokens(self, request: Request, planned_tokens: int, turn: Turn) -> int:
        spec = request.spec
        class_cap = turn.plan.class_caps.get(spec.request_class, planned_tokens)
        own_cap = spec.speculation.cap(planned_tokens)
        return draft_room(request, min(planned_tokens, class_cap, own_cap))

    def _append(self, request: Request, token_ids: Sequence[int]) -> None:
        """New tokens: everything before the last of them has its K/V by now."""
        request.token_ids.extend(token_ids)
        request.committed = len(request.token_ids) - 1
        if self._parts.drafter is not None and token_ids:
            self._parts.drafter.observe(request.spec.key, token_ids)

    def _feed(self, request: Request, start: int, tokens: int) -> None:
        if self._parts.drafter is not None:
            chunk = request.token_ids[start : start + tokens]
            self._parts.drafter.prefill(request.spec.key, chunk)

    def _report(
        self,
        request: Request,
        token_ids: tuple[int, ...],
        accepted: int,
        finish: Finish | None,
        turn: Turn,
    ) -> None:
        if finish is not None:
            self._end(request, finish, turn, token_ids, accepted)
        elif token_ids:
            news = TokenNews(request.spec.key, token_ids, accepted, self._drafter_name)
            turn.news.append(news)

    def _end(
        self,
        request: Request,
        end: Finish | Failure,
        turn: Turn,
        token_ids: tuple[int, ...] = (),
        accepted: int = 0,
    ) -> None:
        self._forget(request, turn)
        key, name = request.spec.key, self._drafter_name
        emitted_tokens = request.emitted_here
        news = TokenNews(key, token_ids, accepted, name, end, request.totals, emitted_tokens)
        turn.news.append(news)

    def _forget(self, request: Request, turn: Turn) -> None:
        """Free all it owns. Drafts it had at hand were made for nothing, and are counted."""
        turn.note_draft(request, self._drafter_name, verified=0, accepted=0)
        request.draft = NO_DRAFT
        self._parts.scheduler.remove(request)
        if self._parts.drafter is not None:
            self._parts.drafter.release(request.spec.key)

    def _book(self, turn: Turn) -> None:
        """Close the step: its record goes to whoever counts, its time to the guard's ledger."""
        self.rounds += 1
        now_s = self._now_s()
        record = turn.record(self.rounds, now_s)
        if record.requests:
            self._guard_round(record, turn, now_s)
        self._on_record(record)

    def _guard_round(self, record: RoundRecord, turn: Turn, now_s: float) -> None:
        times = record.times
        self._off.observe(record)
        guard = self._parts.guard
        guard.thresholds = turn.plan.guard
        guard.observe(
            GuardRound(
                requests=record.requests,
                emitted_tokens=record.emitted_tokens,
                verified_tokens=record.verified_tokens,
                speculative=record.carried_draft_tokens > 0,
                drafted=record.next_draft_tokens > 0,
                elapsed_s=times.total_s,
                plain_s=times.target_s + times.exposed_host_s,
                off_s=self._off.seconds(record),
                trial=DraftKind.TRIAL in (turn.carried.kind, turn.drafted.kind),
            ),
            now_s,
        )
