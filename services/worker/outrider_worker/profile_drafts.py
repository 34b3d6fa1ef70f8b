"""Measures what each drafter costs: D(n, d) of drafting, E(rows) of feeding one with a state."""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from outrider_worker.engine.costs import CostCurve, DraftCost, DrafterCosts
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.orders import DraftOrder, FeedOrder, StepOrder
from outrider_worker.engine.types import RequestSpec, SamplingParams
from outrider_worker.profile_seats import ProfileSeats, replayed
from outrider_worker.speculate.drafter import Ask, Drafter, ReadsRequests

DRAFT_REQUESTS_LADDER = (1, 2, 4, 8, 16, 32)


class DraftProfiler:
    """Drafts and feeds over made-up requests."""

    def __init__(self, seats: ProfileSeats, drafters: Drafters) -> None:
        self._seats = seats
        self._drafters = drafters

    def costs(
        self, name: str, rows_ladder: Sequence[int], context_tokens: Sequence[int]
    ) -> DrafterCosts:
        """D(n, d) in the place where the drafter will work, and E(rows) if it is fed."""
        draft = tuple((context, self._grid(name, context)) for context in context_tokens)
        if not self._is_fed(name):
            return DrafterCosts(name, draft)
        feed = tuple(self._feed_curve(rows_ladder, context) for context in context_tokens)
        return DrafterCosts(name, draft, feed)

    def warm_up(self, context_tokens: int) -> None:
        """Draft once in every shape of the device, so that no request pays for the first time."""
        for name in self._drafters.device:
            self._grid(name, context_tokens, once=True)

    def _is_fed(self, name: str) -> bool:
        stateful = self._drafters.stateful
        return stateful is not None and stateful.traits.name == name

    def _grid(self, name: str, context: int, once: bool = False) -> tuple[DraftCost, ...]:
        most = self._drafters.traits_of(name).max_draft_tokens
        seconds = self._draft_s(name, context)
        shapes = [
            (n, d)
            for n in DRAFT_REQUESTS_LADDER
            if n <= self._seats.size.seats
            for d in sorted({tokens for tokens in (1, 2, 4, most) if tokens <= most})
        ]
        if once:
            for n, d in shapes:
                seconds(n, d)
            return ()
        return tuple(DraftCost(n, d, replayed(partial(seconds, n, d))) for n, d in shapes)

    def _draft_s(self, name: str, context: int) -> Callable[[int, int], float]:
        on_device = name in self._drafters.device
        if on_device and (self._seats.runner.asynchronous or name not in self._drafters.host):
            return partial(self._device_draft_s, name, context)
        return self._host_draft_s(self._drafters.host[name], context)

    def _host_draft_s(self, drafter: Drafter, context: int) -> Callable[[int, int], float]:
        keys = [self._seats.key(number) for number in range(self._seats.size.seats)]
        for number, key in enumerate(keys):
            text = self._seats.history(number, context)
            drafter.release(key)
            if isinstance(drafter, ReadsRequests):
                drafter.begin(RequestSpec(key, text, SamplingParams(), prediction_ids=text))
            drafter.prefill(key, text)

        def seconds(requests: int, tokens: int) -> float:
            asks = [Ask(key, tokens) for key in keys[:requests]]
            started_s = perf_counter()
            drafter.propose(asks)
            return perf_counter() - started_s

        return seconds

    def _device_draft_s(self, name: str, context: int, requests: int, tokens: int) -> float:
        behind = [0] * requests if self._is_fed(name) else None
        lines = self._seats.seated(requests, context, behind)
        order = DraftOrder(name, lines, [tokens] * requests, tokens)
        runner = self._seats.runner
        step = runner.begin(None)
        runner.finish(step, StepOrder(drafts=[order]))
        return step.read().times.draft_s

    def _feed_curve(self, rows_ladder: Sequence[int], context: int) -> CostCurve:
        timings = [replayed(partial(self._feed_s, rows, context)) for rows in rows_ladder]
        return CostCurve(context, tuple(rows_ladder), tuple(timings))

    def _feed_s(self, rows: int, context: int) -> float:
        """Device seconds of feeding so many positions, as a round commits them."""
        counts = self._seats.shared_out(rows)
        lines = self._seats.seated(len(counts), context, counts)
        runner = self._seats.runner
        step = runner.begin(None)
        order = FeedOrder(lines, rows)
        runner.finish(step, StepOrder(feed=order))
        return step.read().times.feed_s
