"""What a hello or a report may claim: physics and caps, applied before anything counts.

Knows the inequalities every honest worker satisfies. Does not know statistics or plans. A report
that breaks them is dropped whole or in part, and every drop has a reason from a fixed list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    MAX_BINS,
    AcceptanceCell,
    BoolArray,
    DrafterTraits,
    Hello,
    IntArray,
    RoundColumns,
    StepReports,
    WorkerLimits,
)

REASONS = (
    "malformed",
    "duplicate",
    "unknown_stream",
    "too_many_rounds",
    "impossible_round",
    "time_out_of_range",
    "impossible_cell",
    "unknown_drafter",
    "not_finite",
)
MAX_ROUNDS_PER_REPORT = 20_000
TIME_RATIO_BOUNDS = (0.2, 5.0)
# What runs beside the target pass may take as long as its upper bound, and this at least.
BESIDE_BOUND_S = 0.05
# Rounds may have waited in the worker's ring, so time that went by unreported is credited.
MOST_CREDIT_S = 60.0
_MOST_CONTEXT_TOKENS = 1 << 24
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,63}")
_OTHER = "other"


class ReportRejectedError(ValueError):
    """A report of which nothing can be believed; ``reason`` is one of ``REASONS``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"report rejected: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class BoundedReport:
    """What is left of a report. ``timed`` masks the rounds whose times are believed."""

    rounds: RoundColumns
    timed: BoolArray
    cells: tuple[tuple[CellKey, Counts], ...]
    rejected: Counter[str]


@dataclass(frozen=True, slots=True)
class ReportContext:
    """What a report is held against. ``credit_s``: time that its rounds may have taken;
    ``dropped_rounds``: rounds that the worker says it could not report."""

    hello: Hello
    credit_s: float
    least_round_s: float
    table_target_s: Callable[[IntArray], np.ndarray[tuple[int, ...], np.dtype[np.float64]]] | None
    dropped_rounds: int = 0


def is_label(text: str) -> bool:
    """Whether a name is short and plain enough for keys, logs and JSON."""
    return _LABEL.fullmatch(text) is not None


def class_label(text: str, known: Mapping[str, int] | set[str], limit: int) -> str:
    """The class to count under: "other" for odd labels and once the limit is reached."""
    label = text or "default"
    if label in known:
        return label
    return label if is_label(label) and len(known) < limit else _OTHER


def bound_report(report: StepReports, context: ReportContext) -> BoundedReport:
    """Checks a report against physics.

    Raises:
        ReportRejectedError: columns of unequal length, or more rounds than time allows.
    """
    rounds, limits = report.rounds, context.hello.limits
    sizes = {getattr(rounds, column.name).size for column in fields(rounds)}
    if len(sizes) != 1 or max(sizes) > MAX_ROUNDS_PER_REPORT:
        raise ReportRejectedError("malformed")
    if len(rounds) * context.least_round_s > context.credit_s:
        raise ReportRejectedError("too_many_rounds")
    rejected: Counter[str] = Counter()
    possible = _possible(rounds, context.hello)
    rejected["impossible_round"] += int((~possible).sum())
    kept = take(rounds, possible)
    timed = _believable_times(kept, context)
    rejected["time_out_of_range"] += int((~timed).sum()) if context.table_target_s else 0
    unseen = 1 + _possible_drops(len(rounds), context)
    most_asked = int(kept.requests.sum()) + unseen * limits.max_running_requests
    cells = _bound_cells(report.cells, context.hello, most_asked, rejected)
    return BoundedReport(kept, timed, cells, +rejected)


def take(rounds: RoundColumns, mask: BoolArray) -> RoundColumns:
    """The rounds that a mask selects."""
    if mask.all():
        return rounds
    changes = {column.name: getattr(rounds, column.name)[mask] for column in fields(rounds)}
    return replace(rounds, **changes)


def _possible_drops(reported: int, context: ReportContext) -> int:
    """As many of the rounds said to be dropped as fit into the time beside those reported."""
    left = int(context.credit_s / context.least_round_s) - reported
    return max(min(context.dropped_rounds, left), 0)


def _possible(rounds: RoundColumns, hello: Hello) -> BoolArray:
    limits = hello.limits
    n, verified = rounds.requests, rounds.target_rows - rounds.requests
    most = limits.max_draft_tokens
    result: BoolArray = (
        (n >= 1)
        & (n <= limits.max_running_requests)
        & (rounds.carried_draft_tokens >= 0)
        & (rounds.carried_draft_tokens <= most)
        & (rounds.next_draft_tokens >= 0)
        & (rounds.next_draft_tokens <= most)
        & (rounds.pool_tokens >= 0)
        & (rounds.pool_tokens <= n * rounds.carried_draft_tokens)
        & (verified >= 0)
        & (verified <= rounds.pool_tokens)
        & (rounds.target_rows <= limits.max_rows_per_forward)
        & (rounds.bucket_rows >= rounds.target_rows)
        & (rounds.bucket_rows <= hello.most_bucket_rows)
        & (rounds.accepted_tokens >= 0)
        & (rounds.accepted_tokens <= verified)
        & (rounds.emitted_tokens >= 0)
        & (rounds.emitted_tokens <= n + rounds.accepted_tokens)
        & (rounds.request_context_tokens >= 0)
        & (rounds.request_context_tokens <= n * _MOST_CONTEXT_TOKENS)
    )
    for times in (rounds.target_us, rounds.feed_us, rounds.draft_us, rounds.exposed_host_us):
        result &= times >= 0
    return result


def _believable_times(rounds: RoundColumns, context: ReportContext) -> BoolArray:
    if context.table_target_s is None or len(rounds) == 0:
        return np.zeros(len(rounds), dtype=bool)
    expected_us = context.table_target_s(rounds.bucket_rows) * 1e6
    low, high = TIME_RATIO_BOUNDS
    most_us = high * expected_us
    result: BoolArray = (rounds.target_us >= low * expected_us) & (rounds.target_us <= most_us)
    for beside in (rounds.feed_us, rounds.draft_us, rounds.exposed_host_us):
        result &= beside <= np.maximum(most_us, BESIDE_BOUND_S * 1e6)
    return result


def _bound_cells(
    cells: tuple[AcceptanceCell, ...],
    hello: Hello,
    most_asked: int,
    rejected: Counter[str],
) -> tuple[tuple[CellKey, Counts], ...]:
    traits = {item.name: item for item in hello.drafters}
    asked: Counter[str] = Counter()
    kept = []
    for cell in cells:
        if cell.drafter not in traits:
            rejected["unknown_drafter"] += 1
            continue
        possible = asked[cell.drafter] + cell.asked <= most_asked
        counts = _counts(cell, traits[cell.drafter], hello.limits) if possible else None
        if counts is None:
            rejected["impossible_cell"] += 1
            continue
        asked[cell.drafter] += cell.asked
        kept.append((CellKey(cell.drafter, cell.request_class, cell.context_band), counts))
    return tuple(kept)


def _counts(cell: AcceptanceCell, traits: DrafterTraits, limits: WorkerLimits) -> Counts | None:
    """A cell as counts, or None where it claims the impossible."""
    positions = min(traits.max_draft_tokens, limits.max_draft_tokens)
    columns = (cell.asked_by_position, cell.drafted, cell.verified, cell.accepted)
    longest = max(column.size for column in columns)
    if longest > positions or not _within(cell, columns):
        return None
    by_position = np.zeros((4, positions), dtype=np.int64)
    for row, column in zip(by_position, columns, strict=True):
        row[: column.size] = column
    grid = _grid(cell, by_position[1:], positions, traits.score_bins)
    if grid is None or cell.asked < int(by_position[0].max(initial=0)):
        return None
    chains_fall = bool((np.diff(by_position, axis=1) <= 0).all())
    ordered = _falls(grid) and _falls(by_position)
    if not (chains_fall and ordered and (by_position >= 0).all() and (grid >= 0).all()):
        return None
    return Counts(by_position[0].astype(np.float64), grid.astype(np.float64))


def _within(cell: AcceptanceCell, columns: tuple[IntArray, ...]) -> bool:
    """Whether every count is possible by itself; then their sums cannot overflow."""
    by_bin = (cell.bin_drafted, cell.bin_verified, cell.bin_accepted)
    counts = np.concatenate((*columns, *by_bin))
    return bool(counts.min(initial=0) >= 0 and counts.max(initial=0) <= cell.asked)


def _falls(stages: IntArray) -> bool:
    """Whether asked ≥ drafted ≥ verified ≥ accepted everywhere, along the first axis."""
    return bool((np.diff(stages, axis=0) <= 0).all())


def _grid(
    cell: AcceptanceCell, by_position: IntArray, positions: int, bins: int
) -> IntArray | None:
    """(3, K, MAX_BINS) from the bin columns; everything in bin 0 for a drafter without scores."""
    grid = np.zeros((3, positions, MAX_BINS), dtype=np.int64)
    columns = (cell.bin_drafted, cell.bin_verified, cell.bin_accepted)
    sizes = {column.size for column in (cell.bin_position, cell.bin, *columns)}
    if len(sizes) != 1:
        return None
    if cell.bin.size == 0:
        grid[:, :, 0] = by_position
        return grid
    inside = (cell.bin_position >= 0) & (cell.bin_position < positions) & (cell.bin >= 0)
    if not (inside & (cell.bin < bins)).all():
        return None
    for kind, column in enumerate(columns):
        np.add.at(grid[kind], (cell.bin_position, cell.bin), column)
    return grid if bool((grid.sum(axis=2) <= by_position).all()) else None
