"""The engine's turns played on paper: a scheduler, real page accounting, and a pool of plain ints.

Nothing is computed. A K/V entry is a number that stands for the whole text up to its position, so
that an entry lost, overwritten or taken from another text is seen at once. Rounds land one turn
after their launch, as they do on a device that runs ahead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.scheduler import PrefillChunk, Scheduler, SchedulerLimits
from outrider_worker.engine.types import Request, RequestKey, RequestSpec, SamplingParams

_numbers = count()
_REJECTED = -1


def spec_of(
    prompt_ids: Sequence[int],
    max_tokens: int = 8,
    *,
    salt: bytes = b"",
    resumed: Sequence[int] = (),
) -> RequestSpec:
    """A request with a key of its own."""
    return RequestSpec(
        RequestKey("test", f"r{next(_numbers)}"),
        tuple(prompt_ids),
        SamplingParams(max_tokens=max_tokens),
        resumed_ids=tuple(resumed),
        tenant_salt=salt,
    )


class PaperPool:
    """Slots with what was written to them last."""

    def __init__(self, account: PageAccount) -> None:
        self._account = account
        self._entries: dict[int, int] = {}

    def write(self, request: Request, start: int, end: int) -> None:
        """K/V of known tokens at positions start…end−1."""
        for position in range(start, end):
            self._entries[self._account.slot(request, position)] = _entry(request, position)

    def spoil(self, request: Request, start: int, end: int) -> None:
        """K/V of drafts that are going to be rejected."""
        for position in range(start, end):
            self._entries[self._account.slot(request, position)] = _REJECTED

    def check(self, request: Request) -> None:
        """Every committed entry is that of the request's own text."""
        for position in range(request.committed):
            entry = self._entries[self._account.slot(request, position)]
            assert entry == _entry(request, position), f"position {position} is not its own"


def _entry(request: Request, position: int) -> int:
    return hash((request.spec.tenant_salt, tuple(request.token_ids[: position + 1])))


@dataclass(eq=False)
class _Flight:
    """A launched round of one request: `tokens` come of it, committing `entries` K/V entries."""

    request: Request
    epoch: int
    tokens: int
    entries: int
    longest: int


@dataclass
class PaperEngine:
    """Plays turns. `accept` says how many of the drafts granted to a request are right."""

    scheduler: Scheduler
    pages: PageAccount
    draft_tokens: int = 0
    accept: Callable[[Request, int], int] = lambda _request, granted: granted
    running_ahead: bool = True
    finished: list[Request] = field(default_factory=list)
    prefilled_tokens: int = 0

    def __post_init__(self) -> None:
        self.pool = PaperPool(self.pages)
        self._flights: list[_Flight] = []

    @classmethod
    def of(
        cls,
        pool_pages: int,
        page_tokens: int = 4,
        *,
        limits: SchedulerLimits | None = None,
        cached: bool = True,
        **options: object,
    ) -> "PaperEngine":
        cache = PrefixCache(page_tokens, enabled=cached)
        pages = PageAccount(pool_pages + 1, page_tokens, cache)
        scheduler = Scheduler(limits or SchedulerLimits(max_rows_per_forward=16), pages)
        return cls(scheduler, pages, **options)  # type: ignore[arg-type]

    def submit(self, *specs: RequestSpec) -> list[Request]:
        return [self.scheduler.submit(spec) for spec in specs]

    def turn(self) -> None:
        """One turn of the loop: admit, launch a round, read the one before, prefill, check."""
        for request in self.scheduler.admit():
            self.pool.check(request)
        landing = self._flights
        self._flights = []
        self._launch_round(landing)
        if not self.running_ahead:
            landing, self._flights = [*landing, *self._flights], []
        self._read(landing)
        for chunk in self.scheduler.prefill_chunks():
            self._prefill(chunk)
        self.check()

    def run(self, most_turns: int) -> int:
        """Turns until nothing is left to do; AssertionError beyond `most_turns`."""
        for turn in range(most_turns):
            if self.scheduler.idle:
                return turn
            self.turn()
        assert self.scheduler.idle, f"not finished after {most_turns} turns"
        return most_turns

    def check(self) -> None:
        """Page states, and the content of everyone's committed entries."""
        self.pages.check(self.scheduler.running)
        for request in self.scheduler.running:
            self.pool.check(request)

    def _launch_round(self, landing: Sequence[_Flight]) -> None:
        requests = self.scheduler.decoding()
        room = self.scheduler.reserve_round(requests, [self.draft_tokens] * len(requests))
        for request, granted in zip(room.requests, room.granted, strict=True):
            expected = request.committed + sum(
                flight.entries for flight in landing if flight.request is request
            )
            accepted = self.accept(request, granted)
            entries = min(accepted + 1, request.limit_tokens - expected)
            ends = min(expected + granted + 1, request.reserved)
            self.pool.spoil(request, expected, ends)
            flight = _Flight(request, request.epoch, entries, entries, granted + 1)
            self._flights.append(flight)
        self._note_ahead([*landing, *self._flights])

    def _read(self, landing: Sequence[_Flight]) -> None:
        for flight in landing:
            if flight.request.epoch == flight.epoch:
                self._land(flight)
        self._note_ahead(self._flights)

    def _land(self, flight: _Flight) -> None:
        request = flight.request
        tokens = min(flight.tokens, request.room_tokens)
        start = len(request.token_ids)
        request.token_ids += [_emitted(request, start + place) for place in range(tokens)]
        self.pool.write(request, request.committed, len(request.token_ids) - 1)
        request.committed = len(request.token_ids) - 1
        self.pages.publish(request)
        if request.room_tokens == 0:
            self.scheduler.remove(request)
            self.finished.append(request)

    def _prefill(self, chunk: PrefillChunk) -> None:
        request = chunk.request
        self.pool.write(request, chunk.start, chunk.start + chunk.tokens)
        request.committed = chunk.start + chunk.tokens
        self.prefilled_tokens += chunk.tokens
        self.pages.publish(request)
        if chunk.completes:
            request.prefilled = True
            self._flights.append(_Flight(request, request.epoch, 1, 0, 0))

    def _note_ahead(self, flights: Sequence[_Flight]) -> None:
        for request in self.scheduler.running:
            longest = sum(
                flight.longest
                for flight in flights
                if flight.request is request and flight.epoch == request.epoch
            )
            request.ahead = min(longest, request.reserved - request.committed)


def _emitted(request: Request, position: int) -> int:
    """The text goes on the same way whatever the schedule."""
    return (request.spec.prompt_ids[-1] * 7 + position * 3) % 5
