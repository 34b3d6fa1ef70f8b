"""An engine under watch: what must hold at every step, whatever traffic comes, and at the end.

Works with known texts (tests.support.traffic). Keeps sums instead of lists, so that it can watch
for hours.
"""

from collections import Counter
from collections.abc import Callable, Sequence, Sized
from typing import Any

from outrider_worker.engine.inbox import DropOwner, EndAll
from outrider_worker.engine.orders import RoundOrder, StepOrder
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Request, RequestKey
from outrider_worker.runner import Mask, Runner, Step
from tests.support.engines import Bench
from tests.support.traffic import LONGEST_PROMPT_TOKENS, Sent, submission
from tests.support.virtual_stream import HostClock
from tests.unit.worker.grammars import END_IDS

# Steps in which nothing of the oldest request moves: seated, launched, read, and one of grace.
_STILL_STEPS = 4


class WatchedRunner(Runner):
    """Checks each order against the limits of one forward, and remembers who was seated."""

    def __init__(self, inner: Runner, limits: SchedulerLimits) -> None:
        super().__init__(inner._programs, inner._stream)
        self._limits = limits
        self.seated: dict[RequestKey, Request] = {}

    def seat(
        self, request: Request, end_ids: frozenset[int], fed_tokens: int | None = None
    ) -> None:
        self.seated[request.spec.key] = request
        super().seat(request, end_ids, fed_tokens)

    def begin(self, order: RoundOrder | None) -> Step:
        if order is not None:
            self._check_round(order)
        return super().begin(order)

    def finish(
        self,
        step: Step,
        order: StepOrder,
        masks: Sequence[Mask | None] = (),
        first_masks: Sequence[Mask | None] = (),
    ) -> None:
        assert sum(chunk.tokens for chunk in order.chunks) <= self._limits.chunk_tokens
        seats = [chunk.seat.seat for chunk in order.chunks]
        assert len(set(seats)) == len(seats)
        super().finish(step, order, masks, first_masks)

    def _check_round(self, order: RoundOrder) -> None:
        seats = [line.seat for line in order.seats]
        assert len(set(seats)) == len(seats)
        assert order.rows <= self._limits.max_rows_per_forward
        assert len(seats) <= order.rows <= len(seats) + sum(order.caps)
        assert order.width == max(order.caps)
        if order.drafts is not None:
            assert [len(draft) for draft in order.drafts] == list(order.caps)


class Watched(Bench):
    """A Bench whose requests are `Sent`, checked after every step; answers that ended are let go.

    clock: one second for each step, so that a deadline is a number of steps.
    """

    def __init__(self, limits: SchedulerLimits, **parts: Any) -> None:
        self.clock = HostClock()
        super().__init__(
            limits=limits,
            eos_token_ids=END_IDS,
            now_s=self.clock,
            wrap_runner=self._watch,
            **parts,
        )
        self._limits = limits
        self._plan_stream = self.plans.open_stream()
        self._plan_version = 0
        self._still_steps = 0
        self._dropped: set[RequestKey] = set()
        self.live: dict[RequestKey, Sent] = {}
        self.told: Counter[str] = Counter()
        """By news: tokens, accepted; ended requests by how they ended."""
        self.booked: Counter[str] = Counter()
        """By records."""
        self.counted: Counter[str] = Counter()
        """By requests' own totals."""

    def _watch(self, runner: Runner) -> Runner:
        self.runner = WatchedRunner(runner, self.scheduler.limits)
        return self.runner

    def send(self, *requests: Sent) -> None:
        for request in requests:
            self.live[request.spec.key] = request
            self.answers[request.spec.key] = request.answer
            self.engine.inbox.put(submission(request))

    def offer(self, make: Callable[[int], Plan]) -> None:
        """Put the plan of the next version in force."""
        self._plan_version += 1
        assert self.plans.offer(self._plan_stream, make(self._plan_version), self.clock())

    def drop_owner(self, owner: str) -> None:
        """From the next step on its requests get no news any more."""
        self.engine.inbox.put(DropOwner(owner))
        self._dropped |= {key for key in self.live if key.owner == owner}

    def end_all(self) -> None:
        self.engine.inbox.put(EndAll("draining"))

    def step(self) -> None:
        oldest = next(iter(self.scheduler.everyone()), None)
        before = None if oldest is None else (oldest, oldest.seat, _state(oldest))
        self.clock.now_s += 1.0
        super().step()
        self._check_scheduler()
        if before is not None:
            self._check_oldest(*before)
        self._fold()

    def finish(self) -> None:
        """Step until idle, within what all that is left may need, and check that all is back."""
        most_steps = 40 + sum(
            2 * sent.spec.sampling.max_tokens + self._prefill_steps() for sent in self.live.values()
        )
        for _ in range(most_steps):
            if self.engine.idle:
                break
            self.step()
        self.check_idle()

    def check_idle(self) -> None:
        """Nothing is held, and the three ways of counting agree."""
        assert self.engine.idle, "the engine did not finish"
        assert not self.live
        assert self.pages.used_pages == 0
        assert self.pages.spare_pages == self.pages.capacity_pages
        self._check_forgotten()
        for name in ("drafted", "verified", "accepted"):
            assert self.counted[name] == self.booked[name], name
        assert self.told["tokens"] == self.booked["tokens"]
        assert self.told["accepted"] == self.booked["accepted"]
        assert self.booked["accepted rows"] == self.booked["accepted"]
        assert self.booked["verified rows"] >= self.booked["verified"]

    def _check_forgotten(self) -> None:
        """Nothing is kept by request."""
        drafting, scheduler = self.engine._drafting, self.scheduler
        kept: list[Sized] = [self.pages._hits, self.pages.cache._progress]
        kept += [scheduler._by_key, scheduler._ages, scheduler._admission._awaited]
        kept += [drafting.upkeep._states, drafting.upkeep._cohort._rounds]
        for feed in drafting._feeds.values():
            kept += [feed._fed_tokens, feed._idle_rounds]
        assert [len(each) for each in kept] == [0] * len(kept)

    def _prefill_steps(self) -> int:
        return -(-LONGEST_PROMPT_TOKENS // self._limits.chunk_tokens)

    def _check_scheduler(self) -> None:
        scheduler = self.scheduler
        running, everyone = scheduler.running, scheduler.everyone()
        assert len(running) + scheduler.waiting_requests == len(everyone)
        seats = [request.seat for request in running] + scheduler._free_seats
        assert sorted(seats) == list(range(self._limits.max_running_requests))
        if self.engine._flight is None:
            assert all(request.ahead == 0 for request in running)

    def _check_oldest(self, request: Request, seat: int, state: tuple[int, int, int]) -> None:
        """It is never driven out by the engine, and never stands still for long."""
        if not self.scheduler.has(request.spec.key):
            self._still_steps = 0
            return
        assert seat in (request.seat, -1), "the oldest had to give way"
        self._still_steps = self._still_steps + 1 if _state(request) == state else 0
        # Waiting, it may wait for a beginning that a younger one is just computing.
        patience = _STILL_STEPS + (self._prefill_steps() if request.seat < 0 else 0)
        assert self._still_steps <= patience, "the oldest does not get on"

    def _fold(self) -> None:
        for record in self.records:
            self._book(record)
        self.records.clear()
        for key, sent in list(self.live.items()):
            sent.check()
            if sent.answer.ends:
                self.told[type(sent.answer.end).__name__] += 1
                self.told["finished"] += sent.finished
                self._let_go(key)
            elif key in self._dropped:
                self.told["dropped"] += 1
                self._let_go(key)
        self._dropped.clear()
        for key in [key for key in self.runner.seated if not self.scheduler.has(key)]:
            totals = self.runner.seated.pop(key).totals
            self.counted["drafted"] += totals.drafted_tokens
            self.counted["verified"] += totals.verified_tokens
            self.counted["accepted"] += totals.accepted_tokens

    def _book(self, record: RoundRecord) -> None:
        assert record.accepted_tokens <= record.verified_tokens <= record.pool_tokens
        self.booked["rounds"] += record.requests > 0
        self.booked[record.launch_mode.value] += record.requests > 0
        self.booked["tokens"] += record.emitted_tokens + record.first_tokens
        self.booked["accepted rows"] += record.accepted_tokens
        self.booked["verified rows"] += record.verified_tokens
        for outcome in record.outcomes:
            self.booked["drafted"] += len(outcome.bins)
            self.booked["verified"] += outcome.verified
            self.booked["accepted"] += outcome.accepted

    def _let_go(self, key: RequestKey) -> None:
        answer = self.live.pop(key).answer
        self.answers.pop(key)
        self.told["tokens"] += len(answer.token_ids)
        self.told["accepted"] += answer.accepted_tokens


def _state(request: Request) -> tuple[int, int, int]:
    return request.epoch, request.emitted, request.committed
