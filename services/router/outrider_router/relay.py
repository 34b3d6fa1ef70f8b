"""One request's choices on their way, over as many workers as it takes.

A choice whose worker is lost, drains, or is full goes on at another one: with the ids that came so
far, the same seed and the same place in the prompt's noise, so that the text is as if nothing had
happened. Each choice moves for itself, and whoever reads the news never learns of it. Every attempt
has a key of its own, so that nothing from a former one can be taken for news of the present one.

Knows workers and token ids; knows nothing of text, HTTP or how answers are written.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from outrider_router.mailbox import Mailbox
from outrider_router.metrics import RequestRecord
from outrider_router.routing.fleet import Hold, Worker
from outrider_router.routing.policy import Demand
from outrider_router.routing.registry import NoWorker, Registry, ServedModel
from outrider_router.types import (
    Failure,
    FailureCode,
    Finish,
    FinishKind,
    Submission,
    Totals,
    Update,
)
from outrider_runtime.logs import get_logger
from outrider_runtime.tracing import Span

log = get_logger(__name__)

_POLL_S = 0.05
_INNOCENT_TOKENS = 16


@dataclass
class _Leg:
    """One choice: what came of it so far, and where it is.

    `lost_at`: how many ids had come when its worker was last lost. Another loss soon after is not
    forgiven, because the choice itself may be what kills workers.
    """

    submission: Submission
    received: list[int] = field(default_factory=list)
    totals: Totals | None = None
    totals_before: Totals | None = None
    attempts: int = 0
    began_at: int = 0
    lost_at: int | None = None
    avoided: set[str] = field(default_factory=set)
    sent: Submission | None = None
    hold: Hold | None = None
    span: Span | None = None

    @property
    def finished_by_length(self) -> bool:
        """Every token that it may have is there."""
        return len(self.received) >= self.submission.sampling.max_tokens

    @property
    def is_suspect(self) -> bool:
        """A worker was lost with it at about this place before.

        About, since what a dying worker said last is lost with it: a choice that kills at one token
        is seen to die some tokens earlier.
        """
        return self.lost_at is not None and len(self.received) - self.lost_at < _INNOCENT_TOKENS

    @property
    def demand(self) -> Demand:
        tokens = len(self.submission.prompt_ids) + self.submission.sampling.max_tokens
        return Demand(1, tokens)

    def resumed(self, deadline_ms: int, traceparent: str) -> Submission:
        """What is sent for the next attempt."""
        self.attempts += 1
        self.began_at = len(self.received)
        self.totals_before = self.totals
        name = self.submission.request_id
        return replace(
            self.submission,
            request_id=name if self.attempts == 1 else f"{name}~{self.attempts}",
            deadline_ms=deadline_ms,
            resumed_ids=tuple(self.received),
            traceparent=traceparent,
        )

    def absorb(self, update: Update) -> Update:
        """The update as one of the whole choice instead of its latest attempt."""
        self.received += update.token_ids
        if update.token_ids:
            self.avoided.clear()
        if self.attempts == 1:
            self.totals = update.totals or self.totals
            return update
        if update.totals is not None:
            before = self.totals_before
            self.totals = before.plus(update.totals) if before else update.totals
        # A prompt that was computed once already cost what it cost.
        cached = 0 if self.began_at else update.cached_prompt_tokens
        return update._replace(totals=self.totals, cached_prompt_tokens=cached)


class Relay:
    """News of a request's choices, by their place in `submissions`.

    Args:
        registry: where workers are found.
        model: what must be served.
        submissions: the choices.
        deadline_s: on the clock, when the request's time is up.
        record: the request's, for time, counts and traces.
    """

    def __init__(
        self,
        registry: Registry,
        model: ServedModel,
        submissions: Sequence[Submission],
        deadline_s: float,
        record: RequestRecord,
    ) -> None:
        self._registry = registry
        self._model = model
        self._deadline_s = deadline_s
        self._record = record
        self._clock = record.clock
        self._legs = [_Leg(submission) for submission in submissions]
        self._mailbox = Mailbox(submissions, registry.turns)
        self._begun = False

    def start(self) -> None:
        """Send all choices to one worker.

        Raises:
            NoWorker: none is ready.
        """
        demands = [leg.demand for leg in self._legs]
        whole = Demand(len(demands), sum(demand.kv_tokens for demand in demands))
        first = self._legs[0].submission
        worker = self._registry.pick(self._model, whole, first.prompt_ids, first.tenant_salt)
        for place in range(len(self._legs)):
            self._send(place, worker)

    async def next(self) -> Mapping[int, Update]:
        """Wait for news; at least one place has some."""
        while True:
            found = await self._mailbox.next()
            news = {place: self._legs[place].absorb(update) for place, update in found.items()}
            self._begun = self._begun or any(update.token_ids for update in news.values())
            for place, update in tuple(news.items()):
                if update.end is not None:
                    end = await self._after_end(place, update.end)
                    news[place] = update = update._replace(end=end)
                if not update.token_ids and update.end is None:
                    del news[place]
            if news:
                return news

    def fail(self, failure: Failure) -> None:
        """End every choice that has not ended."""
        for place in range(len(self._legs)):
            self._leave(place)
        self._mailbox.fail(failure)

    def cancel(self, place: int) -> None:
        """Take no more news of one choice; its worker drops it if it has not ended it."""
        self._mailbox.close(place)
        self._leave(place)

    def close(self) -> None:
        """Cancel whatever has not ended."""
        # A stack, so that trouble with one place leaves none of the others behind.
        with ExitStack() as leaving:
            for place in range(len(self._legs)):
                leaving.callback(self.cancel, place)

    def _send(self, place: int, worker: Worker) -> None:
        leg = self._legs[place]
        left_ms = int((self._deadline_s - self._clock.monotonic_s()) * 1000)
        # At least a millisecond, since 0 means no limit.
        address, choice = worker.client.address, leg.submission.choice_index
        leg.span = self._record.trace.attempt(self._model.name, address, choice, len(leg.received))
        leg.sent = leg.resumed(max(left_ms, 1), leg.span.traceparent)
        leg.hold = Hold(worker, leg.demand)
        worker.client.send(leg.sent, lambda update: self._mailbox.deliver(place, update))

    def _leave(self, place: int) -> None:
        """The choice is no longer at the worker it was sent to."""
        leg = self._legs[place]
        if leg.span is not None:
            leg.span.end()
        if leg.hold is not None and leg.sent is not None:
            leg.hold.release()
            leg.hold.worker.client.drop(leg.sent)

    async def _after_end(self, place: int, end: Finish | Failure) -> Finish | Failure | None:
        """What the end of an attempt means for the choice: None if it goes on elsewhere."""
        leg = self._legs[place]
        if leg.span is not None and isinstance(end, Failure):
            leg.span.end(end.code.value)
        self._leave(place)
        if isinstance(end, Finish) and end.kind is FinishKind.CANCELLED:
            end = Failure(FailureCode.UNAVAILABLE, "the worker dropped the request")
        self._judge(leg, end)
        if isinstance(end, Finish) or not end.code.retriable:
            return end
        if leg.finished_by_length:
            return Finish(FinishKind.LENGTH)
        if not self._may_move(leg, end):
            return end
        worker = await self._another(leg)
        if worker is None:
            return end
        self._count_move(leg, worker, end)
        self._mailbox.reopen(place)
        self._send(place, worker)
        return None

    def _judge(self, leg: _Leg, end: Finish | Failure) -> None:
        if leg.hold is None:
            return
        breaker = leg.hold.worker.breaker
        if isinstance(end, Finish):
            breaker.succeeded()
        elif end.worker_lost or end.code is FailureCode.INTERNAL:
            breaker.failed(self._clock.monotonic_s())

    def _may_move(self, leg: _Leg, failure: Failure) -> bool:
        if failure.worker_lost:
            if leg.is_suspect:
                log.warning("suspected_of_killing_workers", request=leg.submission.request_id)
                return False
            leg.lost_at = len(leg.received)
        if leg.hold is not None:
            leg.avoided.add(leg.hold.worker.client.address)
        return leg.attempts < self._registry.moves.most_attempts

    async def _another(self, leg: _Leg) -> Worker | None:
        """A worker for the rest of the choice; once it has begun, one is waited for."""
        submission, avoided = leg.submission, leg.avoided
        give_up_s = self._clock.monotonic_s() + self._registry.moves.wait_s
        while True:
            try:
                return self._registry.pick(
                    self._model, leg.demand, submission.prompt_ids, submission.tenant_salt, avoided
                )
            except NoWorker:
                if not self._begun or not self._registry.running:
                    return None
                if self._clock.monotonic_s() >= give_up_s:
                    return None
            await self._clock.sleep(_POLL_S)
            # One that was lost or full a moment ago may be the only one there will be.
            avoided = set()

    def _count_move(self, leg: _Leg, worker: Worker, failure: Failure) -> None:
        metrics = self._record.metrics
        counter = metrics.migrations if leg.received else metrics.retries
        counter.inc()
        log.info(
            "choice_moved",
            choice=leg.submission.choice_index,
            to=worker.client.address,
            attempt=leg.attempts + 1,
            delivered_tokens=len(leg.received),
            reason=failure.message,
        )
