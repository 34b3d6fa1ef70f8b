"""Measures the cost table at start: T(b) over the row ladder, D(n, d) of the drafter.

Each shape is run as a real round (forward, sampling, judging) over requests of a few rows each,
at two context lengths, after a warm-up; what is kept is the median and the interquartile range of
the replays. The table is stored by engine identity, so that only the first start pays for it.
"""

import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from pydantic import TypeAdapter, ValidationError

from outrider_worker.engine.costs import CostCurve, CostTable, DraftCost, DrafterCosts, Timing
from outrider_worker.engine.drafting import Drafters
from outrider_worker.engine.orders import DraftOrder, RoundOrder, SeatPages, StepOrder
from outrider_worker.engine.types import Request, RequestKey, RequestSpec, SamplingParams
from outrider_worker.graphs import buckets_up_to
from outrider_worker.programs import SeatSize
from outrider_worker.runner import Runner
from outrider_worker.speculate.drafter import Ask, Drafter

CPU_ROW_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DRAFT_REQUESTS_LADDER = (1, 2, 4, 8, 16, 32)
_REPLAYS, _SLOW_REPLAYS, _SLOW_S = 5, 3, 0.2
_ROWS_EACH = 4
_DRAFT_HISTORY_TOKENS = 256

Progress = Callable[[str], None]
_TABLE = TypeAdapter(CostTable)


def row_ladder(size: SeatSize, device: torch.device) -> tuple[int, ...]:
    """The row counts a round of this worker can have, as far as they are measured.

    On a GPU these are the buckets that graphs are captured for: rounds are padded to one of them.
    """
    most = min(size.max_rows, size.seats * (size.max_draft_tokens + 1))
    ladder = buckets_up_to(size.max_rows) if device.type == "cuda" else CPU_ROW_LADDER
    return tuple(rows for rows in ladder if rows <= most)


class Profiler:
    """Fills a cost table by running rounds. The runner must not serve anyone meanwhile."""

    def __init__(
        self,
        runner: Runner,
        size: SeatSize,
        pages: int,
        page_tokens: int,
        vocab_size: int,
        progress: Progress,
    ) -> None:
        """`pages` counts the null page, as the pool does."""
        self._runner = runner
        self._size = size
        self._pages = pages
        self._page_tokens = page_tokens
        self._vocab_size = vocab_size
        self._progress = progress

    def measure(
        self, rows_ladder: Sequence[int], context_tokens: Sequence[int], drafters: Drafters
    ) -> CostTable:
        """Run everything once and return what it cost."""
        target = tuple(self._target_curve(rows_ladder, context) for context in context_tokens)
        if not drafters.name:
            return CostTable(target)
        return CostTable(target, (self._drafter_costs(drafters, context_tokens),))

    def warm_up(self, rows_ladder: Sequence[int], context_tokens: int) -> None:
        """Run every shape once, so that no request pays for the first time."""
        for rows in rows_ladder:
            self._round_s(rows, context_tokens)

    def _target_curve(self, rows_ladder: Sequence[int], context_tokens: int) -> CostCurve:
        timings = []
        for rows in rows_ladder:
            timings.append(_replayed(lambda rows=rows: self._round_s(rows, context_tokens)))  # type: ignore[misc]
            self._progress(
                f"measured {rows} rows at {context_tokens} tokens of context:"
                f" {timings[-1].median_s * 1e3:.1f} ms"
            )
        return CostCurve(context_tokens, tuple(rows_ladder), tuple(timings))

    def _round_s(self, rows: int, context_tokens: int) -> float:
        """Device seconds of one round: drafts of a few tokens, as many requests as that takes."""
        each = max(_ROWS_EACH, -(-rows // self._size.seats))
        each = min(each, self._size.max_draft_tokens + 1)
        counts = [min(each, rows - start) for start in range(0, rows, each)]
        seats = self._seated(len(counts), context_tokens)
        drafts = [(1,) * (count - 1) for count in counts]
        lengths = [len(draft) for draft in drafts]
        order = RoundOrder(seats, drafts, lengths, sum(lengths), max(lengths))
        step = self._runner.begin(order)
        self._runner.finish(step, StepOrder())
        return step.read().times.target_s

    def _seated(self, requests: int, context_tokens: int) -> list[SeatPages]:
        """Requests with varied texts sit down, new each time: a round moves them on."""
        lines = []
        slots = context_tokens + self._size.max_draft_tokens + 1
        count = -(-min(slots, self._size.max_context_tokens) // self._page_tokens)
        for seat in range(requests):
            text = self._history(seat, context_tokens)
            spec = RequestSpec(
                RequestKey("profile", f"{seat}"), text, SamplingParams(max_tokens=64)
            )
            request = Request.from_spec(spec)
            request.seat = seat
            self._runner.seat(request, frozenset())
            # Requests may share pages here: nobody reads what the rows write.
            pages = [1 + (seat * count + page) % (self._pages - 1) for page in range(count)]
            lines.append(SeatPages(seat, pages))
        return lines

    def _history(self, number: int, tokens: int) -> tuple[int, ...]:
        """A text that comes back to itself, so that looking up really finds something."""
        period = _DRAFT_HISTORY_TOKENS // 2
        return tuple((number + i % period) * 31 % self._vocab_size for i in range(tokens))

    def _drafter_costs(self, drafters: Drafters, context_tokens: Sequence[int]) -> DrafterCosts:
        """D(n, d) of the place where the drafter will work."""
        on_device = drafters.device is not None and (
            self._runner.asynchronous or drafters.host is None
        )
        by_context = []
        for context in context_tokens:
            if on_device:
                grid = self._grid(drafters.max_tokens, self._device_draft_s(context))
            else:
                assert drafters.host is not None
                grid = self._grid(drafters.max_tokens, self._host_draft_s(drafters.host, context))
            by_context.append((context, grid))
        return DrafterCosts(drafters.name, tuple(by_context))

    def _grid(self, max_tokens: int, seconds: Callable[[int, int], float]) -> tuple[DraftCost, ...]:
        lengths = sorted({tokens for tokens in (1, 2, 4, max_tokens) if tokens <= max_tokens})
        return tuple(
            DraftCost(n, d, _replayed(lambda n=n, d=d: seconds(n, d)))  # type: ignore[misc]
            for n in DRAFT_REQUESTS_LADDER
            if n <= self._size.seats
            for d in lengths
        )

    def _host_draft_s(self, drafter: Drafter, context: int) -> Callable[[int, int], float]:
        keys = [RequestKey("profile", f"{number}") for number in range(self._size.seats)]
        for number, key in enumerate(keys):
            drafter.release(key)
            drafter.prefill(key, self._history(number, context))

        def seconds(requests: int, tokens: int) -> float:
            asks = [Ask(key, tokens) for key in keys[:requests]]
            started_s = perf_counter()
            drafter.propose(asks)
            return perf_counter() - started_s

        return seconds

    def _device_draft_s(self, context: int) -> Callable[[int, int], float]:
        def seconds(requests: int, tokens: int) -> float:
            seats = [line.seat for line in self._seated(requests, context)]
            step = self._runner.begin(None)
            order = DraftOrder(seats, [tokens] * requests, tokens)
            self._runner.finish(step, StepOrder(drafts=order))
            return step.read().times.draft_s

        return seconds


def _replayed(run_s: Callable[[], float]) -> Timing:
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


def profile_contexts(max_context_tokens: int) -> tuple[int, int]:
    """Two context lengths that span what this worker serves."""
    return max(1, max_context_tokens // 16), max_context_tokens // 2


def load_costs(file: Path) -> CostTable | None:
    """A stored table; None when there is none or it cannot be read any more."""
    try:
        return _TABLE.validate_python(json.loads(file.read_text()))
    except (FileNotFoundError, ValueError, ValidationError):
        return None


def store_costs(file: Path, costs: CostTable) -> None:
    """Write the table so that a reader sees all of it or nothing, whoever else writes it too.

    Raises:
        OSError: the folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(_TABLE.dump_json(costs))
    partial.replace(file)
