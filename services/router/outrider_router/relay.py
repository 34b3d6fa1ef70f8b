"""One request's choices on their way, over as many workers as it takes.

A choice whose worker is lost, drains, or is full goes on at another one: with the ids that came so
far, the same seed and the same place in the prompt's noise, so that the text is as if nothing had
happened. Each choice moves for itself, and whoever reads the news never learns of it. Every attempt
has a key of its own, so that nothing from a former one can be taken for news of the present one.

Knows workers and token ids; knows nothing of text, HTTP or how answers are written.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from outrider_router.leg import Leg
from outrider_router.mailbox import Mailbox
from outrider_router.metrics import RequestRecord
from outrider_router.routing.fleet import Hold, Worker
from outrider_router.routing.policy import Demand
from outrider_router.routing.registry import NoWorker, Registry, ServedModel
from outrider_router.types import Failure, FailureCode, Finish, FinishKind, Submission, Update
from outrider_runtime.logs import get_logger

log = get_logger(__name__)

_POLL_S = 0.05


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
        self._legs = [Leg(submission) for submission in submissions]
        self._mailbox = Mailbox(submissions, registry.turns)
        self._begun = False
        self._waits: dict[int, asyncio.Task[None]] = {}
        self._given_up: Failure | None = None

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
                    end = self._after_end(place, update.end)
                    news[place] = update = update._replace(end=end)
                if not update.token_ids and update.end is None:
                    del news[place]
            if news:
                return news

    def fail(self, failure: Failure) -> None:
        """End every choice that has not ended; none goes on anywhere any more."""
        self._given_up = failure
        for place, leg in enumerate(self._legs):
            leg.leave()
            if self._stop_waiting(place):
                self._mailbox.reopen(place)
        self._mailbox.fail(failure)

    def finish(self, place: int) -> None:
        """One choice has all that it needs, though its worker has not ended it: a success."""
        leg = self._legs[place]
        was_lost = self._stop_waiting(place)
        if not was_lost and leg.hold is not None and len(leg.received) > leg.began_at:
            leg.hold.worker.breaker.succeeded()
        self.cancel(place)

    def cancel(self, place: int) -> None:
        """Take no more news of one choice; its worker drops it if it has not ended it."""
        self._mailbox.close(place)
        self._stop_waiting(place)
        self._legs[place].leave()

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

    def _after_end(self, place: int, end: Finish | Failure) -> Finish | Failure | None:
        """What the end of an attempt means for the choice: None if it goes on elsewhere."""
        leg = self._legs[place]
        if leg.span is not None and isinstance(end, Failure):
            leg.span.end(end.code.value)
        leg.leave()
        if isinstance(end, Finish) and end.kind is FinishKind.CANCELLED:
            end = Failure(FailureCode.UNAVAILABLE, "the worker dropped the request")
        self._judge(leg, end)
        if isinstance(end, Finish) or not end.code.retriable:
            return end
        if leg.finished_by_length:
            return Finish(FinishKind.LENGTH)
        if self._given_up is not None:
            return self._given_up
        return None if self._goes_on(place, end) else end

    def _judge(self, leg: Leg, end: Finish | Failure) -> None:
        if leg.hold is None:
            return
        breaker = leg.hold.worker.breaker
        if isinstance(end, Finish):
            breaker.succeeded()
        elif end.worker_lost or end.code is FailureCode.INTERNAL:
            breaker.failed(self._clock.monotonic_s())

    def _may_move(self, leg: Leg, failure: Failure) -> bool:
        if failure.worker_lost:
            if leg.is_suspect:
                log.warning("suspected_of_killing_workers", request=leg.submission.request_id)
                return False
            leg.lost_at = len(leg.received)
        if leg.hold is not None:
            leg.avoided.add(leg.hold.worker.client.address)
        return leg.attempts < self._registry.moves.most_attempts

    def _goes_on(self, place: int, failure: Failure) -> bool:
        """True if the choice was sent to another worker, or waits for one.

        Once the request has begun, one is waited for: the client cannot ask again without loss.
        """
        leg = self._legs[place]
        if not self._may_move(leg, failure):
            return False
        if self._moved(place, failure, leg.avoided):
            return True
        if not self._begun or not self._registry.running:
            return False
        # Beside the news: other choices do not wait for this one.
        self._waits[place] = asyncio.create_task(self._wait_for_worker(place, failure))
        return True

    async def _wait_for_worker(self, place: int, failure: Failure) -> None:
        """Send the choice on as soon as a worker can take it; end it where none comes in time."""
        give_up_s = self._clock.monotonic_s() + self._registry.moves.wait_s
        try:
            while self._registry.running and self._clock.monotonic_s() < give_up_s:
                await self._clock.sleep(_POLL_S)
                # One that was lost or full a moment ago may be the only one there will be.
                if self._moved(place, failure, without=()):
                    return
        except Exception:
            log.exception("waiting_for_a_worker_failed")
        # The loss itself was told of the worker already.
        self._given_up = replace(failure, worker_lost=False)
        self._mailbox.reopen(place)
        self._mailbox.deliver(place, Update(end=self._given_up))

    def _stop_waiting(self, place: int) -> bool:
        """True if the choice was waiting for a worker."""
        waiting = self._waits.pop(place, None)
        return waiting is not None and waiting.cancel()

    def _moved(self, place: int, failure: Failure, without: Collection[str]) -> bool:
        """True if a worker was there to send the choice to."""
        leg = self._legs[place]
        prompt, salt = leg.submission.prompt_ids, leg.submission.tenant_salt
        try:
            worker = self._registry.pick(self._model, leg.demand, prompt, salt, without)
        except NoWorker:
            return False
        self._count_move(leg, worker, failure)
        self._mailbox.reopen(place)
        self._send(place, worker)
        return True

    def _count_move(self, leg: Leg, worker: Worker, failure: Failure) -> None:
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
