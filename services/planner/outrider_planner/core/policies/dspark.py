"""``dspark``: verify by confidence survival and the speed of a batch size; drafts are always full.

The scheduler published with DSpark, in its production form: the budget is the V that maximises
(n + expected accepted)·SPS(n + V), over all V, and SPS(B) = 1/T(B). Drafting and feeding are not
in it, so it never stops drafting. Source: drafters.md §6b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider_planner.core.cost import CostModel, step_of
from outrider_planner.core.policies.base import (
    Decision,
    DrafterStatistics,
    Snapshot,
    draft_bound,
)
from outrider_planner.core.policies.static import OffPolicy
from outrider_planner.core.search import DrafterDecision, first_best
from outrider_planner.core.stage import Stage, chunks, tabulate
from outrider_planner.core.types import IntArray, Objective, ProbeDirective, WorkerLimits


@dataclass(frozen=True, slots=True)
class DsparkPolicy:
    """Confidences are the calibrated survivals of the drafts' scores, of the rounds before."""

    @property
    def name(self) -> str:
        return "dspark"

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """Throughput only. Plans off, and says so, where no cost was measured."""
        if cost is None:
            off = OffPolicy("no cost table was measured, so dspark cannot price a row")
            return off.decide(snapshot, cost, limits, objective)
        found = tuple(
            _decide(item, snapshot.bounds.capped(draft_bound(item.traits, limits)), cost)
            for item in snapshot.drafters
        )
        step = int(step_of(snapshot.ladder, np.array([max(snapshot.present_requests, 1)]))[0])
        reason = _reason(found, cost.ladder[step], step)
        return Decision(found, ProbeDirective(), reason, snapshot.bounds.class_rules)


def _decide(item: DrafterStatistics, length: int, cost: CostModel) -> DrafterDecision:
    name, gain = item.traits.name, item.gain
    stages = [tabulate(name, gain, cost, steps) for steps in chunks(cost)]
    taken = [stage.taken(_columns(stage, cost)) for stage in stages]
    verify, accepted, pass_s, prepare_s = map(np.concatenate, zip(*taken, strict=True))
    tokens = np.array(cost.ladder) + accepted[:, length]
    rate = tokens / (pass_s[:, length] + prepare_s[:, length])
    draft = np.full(rate.size, length, dtype=np.int64)
    return DrafterDecision(name, draft, verify, rate, accepted, pass_s, prepare_s)


def _columns(stage: Stage, cost: CostModel) -> IntArray:
    """The V of the greatest (n + G)·SPS(n + V) for every carried d, (S, K + 1)."""
    sps = 1.0 / cost.target_s[stage.requests[:, None] + stage.verify]
    speed = (stage.requests[:, None, None] + stage.gain) * sps[:, None, :]
    speed[~np.isfinite(stage.pass_s)] = 0.0
    return first_best(speed, speed.max(axis=(1, 2), keepdims=True), axis=2)


def _reason(found: tuple[DrafterDecision, ...], requests: int, step: int) -> str:
    parts = []
    for item in found:
        d = int(item.draft_tokens[step])
        verify = int(item.verify_tokens[step, d])
        parts.append(
            f"{item.drafter} at n={requests} drafts {d}, always, and verifies up to {verify}: "
            f"{item.accepted[step, d]:.2f} accepted per round, {item.rate[step]:.0f} tokens/s"
        )
    return "dspark: " + ("; ".join(parts) or "the worker has no drafter")
