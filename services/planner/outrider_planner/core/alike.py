"""Whether one worker sees what others see, and what they see together.

Knows two tests, of acceptance and of times, each with a tolerance for what no plan would show and
another for chance. Does not know who is compared, nor what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from outrider_planner.core.evidence import ClassKey
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import FloatArray
from outrider_planner.core.worker_state import WorkerState

ACCEPTANCE_TOLERANCE = 0.05
COST_TOLERANCE = 0.10
_STANDARD_ERRORS = 3.0
# Positions of one draft are accepted or not together, which widens the spread of their sum.
_OVERDISPERSION = 2.0
_LEAST_EVIDENCE_TOKENS = 16.0
# Of those that are pooled: how far from the median, and how many times its weight.
_NEAR_RATIO = 0.3
_MOST_MEDIANS = 4.0


def are_alike(worker: WorkerState, others: WorkerState) -> bool:
    """Whether one plan can serve both; too little evidence is no difference."""
    return _costs_alike(worker, others) and _all_accept_alike(worker.lately, others.lately)


def middle(members: Sequence[WorkerState]) -> list[WorkerState]:
    """Those whose share of accepted drafts is near the median; with too little evidence, too.

    One that lies, or whose traffic is another, decides nothing for the rest.
    """
    totals = np.array(
        [[sum(c.grid[k].sum() for c in m.evidence.fast.values()) for k in (1, 2)] for m in members]
    )
    known = totals[:, 0] >= _LEAST_EVIDENCE_TOKENS
    if not known.any():
        return list(members)
    shares = totals[:, 1] / np.maximum(totals[:, 0], 1.0)
    median = float(np.median(shares[known]))
    near = np.abs(shares - median) <= max(_NEAR_RATIO * median, ACCEPTANCE_TOLERANCE)
    return [member for member, kept in zip(members, near | ~known, strict=True) if kept]


def pooled(members: Iterable[Mapping[ClassKey, Counts]]) -> dict[ClassKey, Counts]:
    """The sums of many; none weighs more than a few of the others."""
    brought: dict[ClassKey, list[Counts]] = {}
    for sums in members:
        for key, counts in sums.items():
            brought.setdefault(key, []).append(counts)
    return {key: _capped_sum(each) for key, each in brought.items()}


def present_target_s(worker: WorkerState) -> float:
    """Seconds of a pass over as many rows as requests fit, as lately; 0 without a table."""
    return float(_target_s(worker)[0]) if worker.costs.has_table else 0.0


def _capped_sum(each: Sequence[Counts]) -> Counts:
    weights = np.array([counts.asked.max(initial=0.0) for counts in each])
    most = _MOST_MEDIANS * float(np.median(weights))
    whole = Counts.zeros(each[0].asked.size, each[0].grid.shape[2])
    for counts, weight in zip(each, weights, strict=True):
        whole.add(counts, min(1.0, most / weight) if weight > 0 else 1.0)
    return whole


def _all_accept_alike(own: Mapping[ClassKey, Counts], others: Mapping[ClassKey, Counts]) -> bool:
    if sum(float(counts.verified.sum()) for counts in others.values()) < _LEAST_EVIDENCE_TOKENS:
        return True
    return all(_accepts_alike(counts, others.get(key)) for key, counts in own.items())


def _accepts_alike(own: Counts, others: Counts | None) -> bool:
    verified = float(own.verified.sum())
    if verified < _LEAST_EVIDENCE_TOKENS:
        return True
    if others is None:
        return False
    rates = _ratio(others.accepted, others.verified)
    expected = own.verified * rates
    spread = math.sqrt(_OVERDISPERSION * float((expected * (1.0 - rates)).sum()))
    drafts = own.asked[:, None] * _ratio(others.drafted, others.asked[:, None])
    return _is_near(float(own.accepted.sum()), float(expected.sum()), spread) and _is_near(
        float(own.drafted.sum()), float(drafts.sum()), math.sqrt(float(drafts.sum()))
    )


def _is_near(found: float, expected: float, spread: float) -> bool:
    tolerance = ACCEPTANCE_TOLERANCE * max(expected, found)
    return abs(found - expected) <= tolerance + _STANDARD_ERRORS * spread


def _costs_alike(worker: WorkerState, others: WorkerState) -> bool:
    if not (worker.costs.has_table and others.costs.has_table):
        return worker.costs.has_table == others.costs.has_table
    own_s, their_s = _target_s(worker), _target_s(others)
    return bool((np.abs(np.log(own_s / their_s)) <= COST_TOLERANCE).all())


def _target_s(worker: WorkerState) -> FloatArray:
    """At the most requests, at the most rows, and at one row."""
    limits = worker.hello.limits
    rows = np.array([limits.max_running_requests, limits.max_rows_per_forward, 1])
    return worker.costs.present_target_s(rows)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """0 where nothing was seen."""
    result: FloatArray = np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)
    return result
