"""What a hello or a report may claim: physics and caps, applied before anything counts.

Knows the inequalities every honest worker satisfies. Does not know statistics or plans. A report
that breaks them is dropped whole or in part, and every drop has a reason from a fixed list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from outrider_planner.core.cell_bounds import bound_cells
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    BoolArray,
    FloatArray,
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
_COLUMNS = tuple(item.name for item in fields(RoundColumns))
# The smallest value of every column: a round has a request, and nothing is negative.
_LEAST = np.array([[int(name == "requests")] for name in _COLUMNS])
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
    table_target_s: Callable[[IntArray], FloatArray] | None
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
    columns = [getattr(rounds, name) for name in _COLUMNS]
    unequal = any(column.size != len(rounds) for column in columns)
    if unequal or len(rounds) > MAX_ROUNDS_PER_REPORT:
        raise ReportRejectedError("malformed")
    if len(rounds) * context.least_round_s > context.credit_s:
        raise ReportRejectedError("too_many_rounds")
    rejected: Counter[str] = Counter()
    possible = _possible(rounds, np.concatenate(columns), context.hello)
    _count(rejected, "impossible_round", possible)
    kept = take(rounds, possible)
    timed = _believable_times(kept, context)
    if context.table_target_s is not None:
        _count(rejected, "time_out_of_range", timed)
    unseen = 1 + _possible_drops(len(rounds), context)
    most_asked = int(kept.requests.sum()) + unseen * limits.max_running_requests
    cells = bound_cells(report.cells, context.hello, most_asked, rejected)
    return BoundedReport(kept, timed, cells, rejected)


def _count(rejected: Counter[str], reason: str, believed: BoolArray) -> None:
    refused = believed.size - int(np.count_nonzero(believed))
    if refused:
        rejected[reason] += refused


def take(rounds: RoundColumns, mask: BoolArray) -> RoundColumns:
    """The rounds that a mask selects."""
    if mask.all():
        return rounds
    return RoundColumns(*(getattr(rounds, name)[mask] for name in _COLUMNS))


def _possible_drops(reported: int, context: ReportContext) -> int:
    """As many of the rounds said to be dropped as fit into the time beside those reported."""
    left = int(context.credit_s / context.least_round_s) - reported
    return max(min(context.dropped_rounds, left), 0)


def _possible(rounds: RoundColumns, values: IntArray, hello: Hello) -> BoolArray:
    """``values``: all columns, one behind the other. Each number is bounded by itself first: then
    none of the sums and products that bound the others can overflow."""
    table = values.reshape(len(_COLUMNS), len(rounds))
    most = _most(hello.limits, hello.most_bucket_rows)
    result: BoolArray = np.logical_and.reduce((table >= _LEAST) & (table <= most), axis=0)
    n, verified = rounds.requests, rounds.target_rows - rounds.requests
    for part, whole in (
        (rounds.pool_tokens, n * rounds.carried_draft_tokens),
        (n, rounds.target_rows),
        (verified, rounds.pool_tokens),
        (rounds.target_rows, rounds.bucket_rows),
        (rounds.accepted_tokens, verified),
        (rounds.emitted_tokens, n + rounds.accepted_tokens),
        (rounds.request_context_tokens, n * _MOST_CONTEXT_TOKENS),
    ):
        result &= part <= whole
    return result


@lru_cache(maxsize=1024)
def _most(limits: WorkerLimits, most_bucket_rows: int) -> IntArray:
    """The largest value of every column, whatever the others hold, (13, 1)."""
    bounds = {
        "requests": limits.max_running_requests,
        "carried_draft_tokens": limits.max_draft_tokens,
        "next_draft_tokens": limits.max_draft_tokens,
        "target_rows": limits.max_rows_per_forward,
        "bucket_rows": most_bucket_rows,
    }
    anything = np.iinfo(np.int64).max
    return np.array([[bounds.get(name, anything)] for name in _COLUMNS])


def _believable_times(rounds: RoundColumns, context: ReportContext) -> BoolArray:
    if context.table_target_s is None or len(rounds) == 0:
        return np.zeros(len(rounds), dtype=bool)
    expected_us = context.table_target_s(rounds.bucket_rows) * 1e6
    low, high = TIME_RATIO_BOUNDS
    most_us = high * expected_us
    result: BoolArray = (rounds.target_us >= low * expected_us) & (rounds.target_us <= most_us)
    longest = np.maximum(np.maximum(rounds.feed_us, rounds.draft_us), rounds.exposed_host_us)
    result &= longest <= np.maximum(most_us, BESIDE_BOUND_S * 1e6)
    return result
