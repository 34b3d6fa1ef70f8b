"""Measures the cost table at start: T(b) over the row ladder, E(b) and D(n, d) of the drafters.

Each shape is run as a real round (forward, sampling, judging), feed or draft over requests of a few
rows each, at two context lengths, after a warm-up; what is kept is the median and the interquartile
range of the replays. The table is stored by engine identity: only the first start pays for it.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from outrider_worker.engine.costs import CostCurve, CostTable
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.orders import RoundOrder, StepOrder
from outrider_worker.graphs import buckets_up_to
from outrider_worker.profile_drafts import DraftProfiler
from outrider_worker.profile_seats import ProfileSeats, replayed
from outrider_worker.programs import SeatSize

CPU_ROW_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

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

    def __init__(self, seats: ProfileSeats, drafters: Drafters, progress: Progress) -> None:
        self._seats = seats
        self._drafters = drafters
        self._drafting = DraftProfiler(seats, drafters)
        self._progress = progress

    def measure(self, rows_ladder: Sequence[int], context_tokens: Sequence[int]) -> CostTable:
        """Run everything once and return what it cost."""
        target = tuple(self._target_curve(rows_ladder, context) for context in context_tokens)
        names = self._drafters.names
        costs = (self._drafting.costs(name, rows_ladder, context_tokens) for name in names)
        return CostTable(target, tuple(costs))

    def warm_up(self, rows_ladder: Sequence[int], context_tokens: int) -> None:
        """Run every shape once, so that no request pays for the first time."""
        for rows in rows_ladder:
            self._round_s(rows, context_tokens)
        self._drafting.warm_up(context_tokens)

    def _target_curve(self, rows_ladder: Sequence[int], context_tokens: int) -> CostCurve:
        timings = []
        for rows in rows_ladder:
            timings.append(replayed(partial(self._round_s, rows, context_tokens)))
            self._progress(
                f"measured {rows} rows at {context_tokens} tokens of context:"
                f" {timings[-1].median_s * 1e3:.1f} ms"
            )
        return CostCurve(context_tokens, tuple(rows_ladder), tuple(timings))

    def _round_s(self, rows: int, context_tokens: int) -> float:
        """Device seconds of one round: drafts of a few tokens, as many requests as that takes."""
        counts = self._seats.shared_out(rows)
        lines = self._seats.seated(len(counts), context_tokens)
        drafts = [(1,) * (count - 1) for count in counts]
        lengths = [len(draft) for draft in drafts]
        order = RoundOrder(lines, drafts, lengths, sum(lengths), max(lengths))
        runner = self._seats.runner
        step = runner.begin(order)
        runner.finish(step, StepOrder())
        return step.read().times.target_s


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
