"""Who waits, who runs, who is prefilled next, who gives way. Pure Python over request records.

Requests have an age, the order of their first arrival, and everything goes by it: the oldest is
let in first, prefilled first and never gives way to a younger one. Memory is taken as it is
needed. When it runs out, room for drafts is given up first, then the youngest running request is
preempted: it goes back into the line and computes again what the prefix cache no longer has. So the
oldest always gets on, and with it, in the end, everyone (docs/adr/0009).
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from outrider_worker.engine.admission import Admission, PoolOf, no_pool
from outrider_worker.engine.line import WaitingLine
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.room import RoomMaker, RoundRoom
from outrider_worker.engine.types import (
    NO_DRAFT,
    NO_SEAT,
    Failure,
    FailureCode,
    Request,
    RequestKey,
    RequestRefused,
    RequestSpec,
)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """prefill_chunk_tokens: of one prefill forward; None = max_rows_per_forward.

    max_waiting_prompt_tokens: known tokens of all who wait; whoever waits alone may have more.
    """

    max_running_requests: int = 32
    max_context_tokens: int = 2048
    max_rows_per_forward: int = 128
    max_waiting_requests: int = 256
    prefill_chunk_tokens: int | None = None
    max_waiting_prompt_tokens: int = 262_144

    @property
    def chunk_tokens(self) -> int:
        return self.prefill_chunk_tokens or self.max_rows_per_forward


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """`tokens` positions of one request from `start` on; its slots are reserved.

    completes: it holds the last token known, whose row emits the next one.
    """

    request: Request
    start: int
    tokens: int
    completes: bool


class Scheduler:
    """The waiting line, the running set with its seats, and the room of both."""

    def __init__(self, limits: SchedulerLimits, pages: PageAccount) -> None:
        self.limits = limits
        self.preemptions = 0
        self._pages = pages
        self._admission = Admission(pages)
        self._waiting = WaitingLine(self._age)
        self._running: list[Request] = []
        self._room = RoomMaker(pages, self._running, self.preempt)
        self._by_key: dict[RequestKey, Request] = {}
        self._ages: dict[Request, int] = {}
        self._arrivals = 0
        self._free_seats = list(range(limits.max_running_requests))

    @property
    def running(self) -> list[Request]:
        """Oldest first."""
        return self._running

    @property
    def waiting_requests(self) -> int:
        return len(self._waiting)

    @property
    def waiting_prompt_tokens(self) -> int:
        """Known tokens of all who wait, whether or not the prefix cache has some of them."""
        return sum(len(request.token_ids) for request in self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def has(self, key: RequestKey) -> bool:
        return key in self._by_key

    def get(self, key: RequestKey) -> Request:
        """The live request of that key; KeyError for one that is not."""
        return self._by_key[key]

    def everyone(self) -> list[Request]:
        return list(self._by_key.values())

    def overdue(self, now_s: float) -> list[Request]:
        """Requests whose deadline has passed, waiting or running."""
        return [
            request
            for request in self._by_key.values()
            if request.spec.deadline_s is not None and request.spec.deadline_s < now_s
        ]

    def keys_of(self, owner: str, request_id: str | None = None) -> list[RequestKey]:
        """All live requests of a router stream, or only those with one id (all its choices)."""
        return [
            key
            for key in self._by_key
            if key.owner == owner and request_id in (None, key.request_id)
        ]

    def submit(self, spec: RequestSpec) -> Request:
        """Put a request in the waiting line.

        Raises:
            RequestRefused: it can never fit, is a duplicate, or the line is full.
        """
        self._check(spec)
        request = Request.from_spec(spec)
        self._ages[request] = self._arrivals
        self._arrivals += 1
        self._waiting.join(request)
        self._by_key[spec.key] = request
        return request

    def admit(self, pool_of: PoolOf = no_pool) -> list[Request]:
        """Seat requests from the line, in its order, while there are seats and room.

        They own the slots of all their known tokens then, and have committed what the prefix
        cache gave them. pool_of: whose pool a request's cached beginning has to be valid in too.
        """
        seats = len(self._free_seats)
        entered = self._admission.enter(self._waiting, self._running, seats, pool_of)
        self._waiting.leave(entered)
        for request in entered:
            request.seat = heappop(self._free_seats)
            insort(self._running, request, key=self._age)
        return entered

    def prefill_chunks(self) -> list[PrefillChunk]:
        """The next prefill forward: the oldest requests first, within the chunk's budget."""
        budget_tokens = self.limits.chunk_tokens
        chunks = []
        for request in self._running:
            start = request.committed + request.ahead
            left = 0 if request.prefilled else len(request.token_ids) - start
            tokens = min(budget_tokens, left)
            if tokens > 0:
                chunks.append(PrefillChunk(request, start, tokens, completes=tokens == left))
                budget_tokens -= tokens
        return chunks

    def decoding(self) -> list[Request]:
        """Requests past their prefill, oldest first."""
        return [request for request in self._running if request.prefilled]

    def reserve_round(self, requests: Sequence[Request], drafts: Sequence[int]) -> RoundRoom:
        """Reserve slots for a round that verifies up to `drafts` drafts for each request.

        Args:
            requests: who decodes, oldest first.
        """
        return self._room.reserve(requests, drafts)

    def reserve_scratch(self, request: Request, wanted: int) -> int:
        """Slots from the next anchor's on that a drafter may write for it, at most `wanted`."""
        return self._room.scratch(request, wanted)

    def preempt(self, request: Request) -> None:
        """Send a running request back into the line; its results in flight are void."""
        self._leave(request)
        self._waiting.send_back(request)
        self.preemptions += 1

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and free all it owns."""
        if request.seat == NO_SEAT:
            self._waiting.leave((request,))
            self._admission.forget(request)
            request.epoch += 1
        else:
            self._leave(request)
        del self._by_key[request.spec.key], self._ages[request]

    def _age(self, request: Request) -> int:
        return self._ages[request]

    def _leave(self, request: Request) -> None:
        """Free seat and pages of a running request, and begin a new epoch."""
        self._running.remove(request)
        heappush(self._free_seats, request.seat)
        self._pages.release(request)
        request.seat = NO_SEAT
        request.prefilled = False
        request.draft = NO_DRAFT
        request.epoch += 1

    def _check(self, spec: RequestSpec) -> None:
        needed_tokens = len(spec.prompt_ids) + spec.sampling.max_tokens
        if spec.key in self._by_key:
            raise _refusal(FailureCode.INVALID, "this request id is in use", "request_id")
        if needed_tokens > self.limits.max_context_tokens:
            raise _refusal(
                FailureCode.TOO_LONG,
                f"{len(spec.prompt_ids)} prompt tokens and {spec.sampling.max_tokens} to emit are"
                f" more than the context of {self.limits.max_context_tokens} tokens",
                "prompt_ids",
            )
        if not self._pages.fits_ever(needed_tokens):
            raise _refusal(
                FailureCode.TOO_LONG,
                f"{needed_tokens} tokens can never fit into the KV pool of"
                f" {self._pages.capacity_pages * self._pages.page_tokens} tokens",
                "prompt_ids",
            )
        self._check_line(len(spec.prompt_ids) + len(spec.resumed_ids))

    def _check_line(self, tokens: int) -> None:
        """A line has a length in requests and one in tokens."""
        if len(self._waiting) >= self.limits.max_waiting_requests:
            raise _refusal(
                FailureCode.OVERLOADED, f"{len(self._waiting)} requests are waiting already"
            )
        waiting_tokens = self.waiting_prompt_tokens
        if waiting_tokens and waiting_tokens + tokens > self.limits.max_waiting_prompt_tokens:
            raise _refusal(
                FailureCode.OVERLOADED,
                f"{waiting_tokens} prompt tokens are waiting already, {tokens} more are too many",
            )


def _refusal(code: FailureCode, message: str, param: str = "") -> RequestRefused:
    return RequestRefused(Failure(code, message, param))
