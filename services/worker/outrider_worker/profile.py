"""Measures the cost table at start: T(b) over the row ladder, D(n, d) of the drafter.

Each shape is run as a real round (forward, sampling, judging) over requests of `_ROWS_EACH` rows
with varied tokens, at two context lengths, after a warm-up; what is kept is the median and the
interquartile range of the replays. The table is stored by engine identity, so that only the first
start pays for it.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from outrider_worker.engine.costs import CostCurve, CostTable, DraftCost, DrafterCosts, Timing
from outrider_worker.engine.tables import ForwardTable, RoundTable, SampleRow
from outrider_worker.engine.types import RequestKey, SamplingParams
from outrider_worker.runner import Runner
from outrider_worker.speculate.drafter import Ask, Drafter

CPU_ROW_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DRAFT_REQUESTS_LADDER = (1, 2, 4, 8, 16, 32)
_REPLAYS, _SLOW_REPLAYS, _SLOW_S = 5, 3, 0.2
_ROWS_EACH = 4
_DRAFT_HISTORY_TOKENS = 256

Progress = Callable[[str], None]
_GREEDY = SamplingParams()
_TABLE = TypeAdapter(CostTable)


class Profiler:
    """Fills a cost table by running rounds. The pool must not serve anyone meanwhile."""

    def __init__(
        self, runner: Runner, pages: int, page_tokens: int, vocab_size: int, progress: Progress
    ) -> None:
        self._runner = runner
        self._pages = pages
        self._page_tokens = page_tokens
        self._vocab_size = vocab_size
        self._progress = progress

    def measure(
        self,
        rows_ladder: Sequence[int],
        context_tokens: Sequence[int],
        drafter: Drafter | None,
    ) -> CostTable:
        """Run everything once and return what it cost."""
        target = tuple(self._target_curve(rows_ladder, context) for context in context_tokens)
        drafters = () if drafter is None else (self._drafter_costs(drafter, context_tokens),)
        return CostTable(target, drafters)

    def warm_up(self, rows_ladder: Sequence[int], context_tokens: int) -> None:
        """Run every shape once, so that no request pays for the first time."""
        for rows in rows_ladder:
            self._runner.launch_round(self._round_table(rows, context_tokens)).read()

    def _target_curve(self, rows_ladder: Sequence[int], context_tokens: int) -> CostCurve:
        timings = []
        for rows in rows_ladder:
            table = self._round_table(rows, context_tokens)
            timings.append(_time(lambda table=table: self._runner.launch_round(table).read()))  # type: ignore[misc]
            self._progress(
                f"measured {rows} rows at {context_tokens} tokens of context:"
                f" {timings[-1].median_s * 1e3:.1f} ms"
            )
        return CostCurve(context_tokens, tuple(rows_ladder), tuple(timings))

    def _round_table(self, rows: int, context_tokens: int) -> RoundTable:
        forward = ForwardTable([], [], [], [], [], [])
        drafts = []
        page_count = -(-(context_tokens + _ROWS_EACH) // self._page_tokens)
        for start in range(0, rows, _ROWS_EACH):
            own_rows = min(_ROWS_EACH, rows - start)
            index = len(forward.pages)
            # Requests may share pages here: nobody reads what the rows write.
            pages = [1 + (index * page_count + p) % (self._pages - 1) for p in range(page_count)]
            for place in range(own_rows):
                row, position = start + place, context_tokens + place
                page, offset = divmod(position, self._page_tokens)
                forward.token_ids.append(row * 7919 % self._vocab_size)
                forward.positions.append(position)
                forward.slots.append(pages[page] * self._page_tokens + offset)
                forward.sequence.append(index)
                forward.samples.append(SampleRow(row, _GREEDY, 0, place))
            forward.pages.append(pages)
            drafts.append((0,) * (own_rows - 1))
        return RoundTable(forward, drafts)

    def _drafter_costs(self, drafter: Drafter, context_tokens: Sequence[int]) -> DrafterCosts:
        keys = [RequestKey("profile", str(i)) for i in range(max(DRAFT_REQUESTS_LADDER))]
        by_context = []
        for context in context_tokens:
            for number, key in enumerate(keys):
                drafter.prefill(key, self._history(number, context))
            by_context.append((context, tuple(self._draft_grid(drafter, keys))))
            for key in keys:
                drafter.release(key)
        return DrafterCosts(drafter.traits.name, tuple(by_context))

    def _history(self, number: int, tokens: int) -> list[int]:
        """A text that comes back to itself, so that looking up really finds something."""
        period = _DRAFT_HISTORY_TOKENS // 2
        return [(number + i % period) * 31 % self._vocab_size for i in range(tokens)]

    def _draft_grid(self, drafter: Drafter, keys: Sequence[RequestKey]) -> list[DraftCost]:
        grid = []
        for requests in DRAFT_REQUESTS_LADDER:
            for tokens in sorted({1, 2, 4, drafter.traits.max_draft_tokens}):
                if tokens > drafter.traits.max_draft_tokens:
                    continue
                asks = [Ask(key, tokens) for key in keys[:requests]]
                timing = _time(lambda asks=asks: drafter.propose(asks))  # type: ignore[misc]
                grid.append(DraftCost(requests, tokens, timing))
        return grid


def _time(run: Callable[[], object]) -> Timing:
    """Median and interquartile range over the replays, after one warm-up."""
    seconds: list[float] = []
    run()
    replays = _REPLAYS
    while len(seconds) < replays:
        started_s = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started_s)
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
