"""Requests that only a cost measurement serves: seats filled with texts, and how replays are timed.

Knows: what a seat needs for a round, a feed or a draft to cost what it will. Does not know: what is
measured.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_worker.engine.costs import Timing
from outrider_worker.engine.orders import SeatPages
from outrider_worker.engine.types import Request, RequestKey, RequestSpec, SamplingParams
from outrider_worker.programs import SeatSize
from outrider_worker.runner import Runner

_REPLAYS, _SLOW_REPLAYS, _SLOW_S = 5, 3, 0.2
_ROWS_EACH = 4
_HISTORY_TOKENS = 256


@dataclass(frozen=True)
class ProfileSeats:
    """The seats of a runner that serves nobody meanwhile. `pages` counts the null page."""

    runner: Runner
    size: SeatSize
    pages: int
    page_tokens: int
    vocab_size: int

    def seated(
        self, requests: int, context_tokens: int, behind: Sequence[int] | None = None
    ) -> list[SeatPages]:
        """Requests with varied texts sit down, new each time: a round moves them on.

        behind: positions of each that a drafter with a state is told it does not know.
        """
        lines = []
        slots = context_tokens + self.size.max_draft_tokens + 1
        count = -(-min(slots, self.size.max_context_tokens) // self.page_tokens)
        for seat in range(requests):
            text = self.history(seat, context_tokens)
            params = SamplingParams(max_tokens=64)
            request = Request.from_spec(RequestSpec(self.key(seat), text, params))
            request.seat = seat
            fed_tokens = max(0, context_tokens - 1 - behind[seat]) if behind else None
            self.runner.seat(request, frozenset(), fed_tokens)
            # Requests may share pages here: nobody reads what the rows write.
            pages = [1 + (seat * count + page) % (self.pages - 1) for page in range(count)]
            lines.append(SeatPages(seat, pages))
        return lines

    def history(self, number: int, tokens: int) -> tuple[int, ...]:
        """A text that comes back to itself, so that looking up really finds something."""
        period = _HISTORY_TOKENS // 2
        return tuple((number + i % period) * 31 % self.vocab_size for i in range(tokens))

    def key(self, number: int) -> RequestKey:
        return RequestKey("profile", f"{number}")

    def shared_out(self, rows: int) -> list[int]:
        """Rows by request: a few each, as many requests as that takes."""
        each = max(_ROWS_EACH, -(-rows // self.size.seats))
        each = min(each, self.size.max_draft_tokens + 1)
        return [min(each, rows - start) for start in range(0, rows, each)]


def replayed(run_s: Callable[[], float]) -> Timing:
    """Median and interquartile range over the replays, after one warm-up."""
    seconds: list[float] = []
    run_s()
    replays = _REPLAYS
    while len(seconds) < replays:
        seconds.append(run_s())
        if seconds[-1] > _SLOW_S:
            replays = _SLOW_REPLAYS
    quartiles = statistics.quantiles(seconds, n=4)
    return Timing(statistics.median(seconds), quartiles[2] - quartiles[0], len(seconds))
