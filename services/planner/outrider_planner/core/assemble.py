"""From a decision to the plan that is sent: bounds, score maps, and whether anything changed.

Knows the plan's shape and what counts as a change worth sending. Does not know how the decision
was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider_planner.core.policies.base import Decision
from outrider_planner.core.search import DrafterDecision
from outrider_planner.core.types import (
    DrafterPlan,
    FloatArray,
    GuardSettings,
    Plan,
    ScoreMap,
    WorkerLimits,
)

# Smaller moves of estimates and prices are not worth a message.
SCORE_STEP = 0.05
RATE_STEP = 0.05


class NotFiniteError(ArithmeticError):
    """A decision with NaN or infinite numbers; the last plan must be held."""


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """What every plan of this planner carries besides the decision."""

    policy: str
    objective: str
    report_interval_ms: int
    validity_ms: int
    grace_ms: int
    guard: GuardSettings
    plain_wanted_after_s: float = 60.0
    plain_share: float = 0.0


def assemble(
    decision: Decision,
    ladder: tuple[int, ...],
    limits: WorkerLimits,
    score_maps: tuple[ScoreMap, ...],
    terms: PlanTerms,
) -> Plan:
    """A plan inside the worker's limits, version 0.

    Raises:
        NotFiniteError: the decision holds NaN or infinite numbers.
    """
    rates = _rates(decision.drafters, len(ladder))
    if not np.isfinite(rates).all() or not np.isfinite(decision.probe.cohort_share):
        raise NotFiniteError("the search returned a number that is not finite")
    return Plan(
        version=0,
        requests_ladder=ladder,
        drafters=tuple(_drafter_plan(item, ladder, limits) for item in decision.drafters),
        rate_tokens_per_s=tuple(float(rate) for rate in rates),
        score_maps=score_maps,
        class_rules=decision.class_rules,
        probe=decision.probe,
        guard=terms.guard,
        report_interval_ms=terms.report_interval_ms,
        validity_ms=terms.validity_ms,
        grace_ms=terms.grace_ms,
        policy=terms.policy,
        objective=terms.objective,
        reason=decision.reason,
    )


def worth_sending(old: Plan | None, new: Plan) -> bool:
    """Whether the new plan differs in more than its wording or the noise of its price."""
    if old is None:
        return True
    held = replace(
        new, version=old.version, reason=old.reason, rate_tokens_per_s=old.rate_tokens_per_s
    )
    if held != old:
        return True
    before, after = np.array(old.rate_tokens_per_s), np.array(new.rate_tokens_per_s)
    return bool((np.abs(after - before) > RATE_STEP * before).any())


def next_score_maps(
    old: Sequence[ScoreMap], found: Sequence[tuple[str, str, FloatArray]]
) -> tuple[ScoreMap, ...]:
    """Score maps by (drafter, class, survival (K, S)); unchanged ones keep their version."""
    before = {(item.drafter, item.request_class): item for item in old}
    version = max((item.version for item in old), default=0) + 1
    maps = []
    for drafter, request_class, survival in found:
        known = before.get((drafter, request_class))
        if known is not None and _close(known, survival):
            maps.append(known)
        else:
            # As on the wire, in single precision, so that a plan survives the round trip.
            rows = survival.astype(np.float32).tolist()
            maps.append(ScoreMap(version, drafter, request_class, tuple(map(tuple, rows))))
    return tuple(maps)


def _close(known: ScoreMap, survival: FloatArray) -> bool:
    before = np.array(known.survival)
    return before.shape == survival.shape and bool((np.abs(before - survival) <= SCORE_STEP).all())


def _rates(drafters: Sequence[DrafterDecision], steps: int) -> FloatArray:
    rates = np.zeros(steps)
    for item in drafters:
        rates = np.maximum(rates, item.rate)
    return rates


def _drafter_plan(
    item: DrafterDecision, ladder: tuple[int, ...], limits: WorkerLimits
) -> DrafterPlan:
    positions = item.verify_tokens.shape[1] - 1
    n = np.array(ladder)[:, None]
    most = np.minimum(n * np.arange(positions + 1), np.maximum(limits.max_rows_per_forward - n, 0))
    rows = n + np.clip(item.verify_tokens, 0, most)
    draft = np.clip(item.draft_tokens, 0, positions)
    return DrafterPlan(item.drafter, tuple(draft.tolist()), tuple(map(tuple, rows.tolist())))
