"""The default policy: the two-stage search, bounded probes while off, and a sentence that says why.

Knows how the search's tables become a decision. Sources: planner.md "The decision", "Exploration
and stability".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from outrider_planner.core.cost import CostModel, step_of
from outrider_planner.core.policies import words
from outrider_planner.core.policies.base import Bounds, Decision, DrafterStatistics, Snapshot
from outrider_planner.core.policies.rules import latency_bound
from outrider_planner.core.policies.static import OffPolicy
from outrider_planner.core.search import DrafterDecision, Terms, decide
from outrider_planner.core.types import FloatArray, Objective, ProbeDirective, WorkerLimits

# The first position tells whether to turn on. A second one would make probes dearer, hence rarer,
# and say less: simulated, the rate after a dip at n = 96 is 0.93 of the best with one, and 0.84
# with two.
PROBE_DRAFT_TOKENS = 1
PROBE_SHARE = 1.0 / 32.0
PROBE_COST_RATIO = 0.003


@dataclass(frozen=True, slots=True)
class TwoStagePolicy:
    """Maximises the predicted long-run rate at every n."""

    @property
    def name(self) -> str:
        return "two_stage"

    @property
    def explores(self) -> bool:
        """While on, its plans look one draft further now and then (core/explore.py)."""
        return True

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """Plans off, and says so, where no cost was measured or there is nothing to plan."""
        if cost is None:
            off = OffPolicy("no cost table was measured, so two_stage cannot price a row")
            return off.decide(snapshot, cost, limits, objective)
        if not snapshot.drafters:
            return OffPolicy("the worker has no drafter").decide(snapshot, cost, limits, objective)
        before = {item.drafter: item for item in _previous(snapshot)}
        bounded = objective is Objective.LATENCY
        found = [
            decide(
                item.traits.name,
                item.gain,
                cost,
                before.get(item.traits.name),
                _terms(item, snapshot.bounds, bounded),
            )
            for item in snapshot.drafters
        ]
        present = int(step_of(snapshot.ladder, np.array([max(snapshot.present_requests, 1)]))[0])
        probe = _probe(found, cost, present)
        reason = _reason(found, snapshot.drafters, cost, present)
        if bounded and snapshot.bounds.latency_bound_s is not None:
            reason += words.latency(found, snapshot.bounds.latency_bound_s, present)
        return Decision(tuple(found), probe, reason, snapshot.bounds.class_rules)


def _terms(item: DrafterStatistics, bounds: Bounds, bounded: bool) -> Terms:
    return Terms(
        max_draft_tokens=bounds.max_draft_tokens,
        latency=latency_bound(item, bounds) if bounded else None,
    )


def _previous(snapshot: Snapshot) -> tuple[DrafterDecision, ...]:
    return snapshot.previous.drafters if snapshot.previous else ()


def _probe(found: list[DrafterDecision], cost: CostModel, present: int) -> ProbeDirective:
    """While some n is planned off: a share of rounds so small that it costs at most 0.3 %.

    Sized for the present n if that is off, for the dearest off n otherwise; a power of two, so
    that noise does not change the plan.
    """
    losses = [_probe_loss(item, cost) for item in found]
    off = np.stack([item.draft_tokens == 0 for item in found])
    if not off.any():
        return ProbeDirective()
    loss = np.where(off, np.stack(losses), 0.0).max(axis=0)
    dearest = float(loss[present] if off[:, present].all() else loss.max())
    share = min(PROBE_SHARE, PROBE_COST_RATIO / max(dearest, PROBE_COST_RATIO))
    share = 2.0 ** math.floor(math.log2(share))
    return ProbeDirective(cohort_share=share, draft_tokens=PROBE_DRAFT_TOKENS)


def _probe_loss(item: DrafterDecision, cost: CostModel) -> FloatArray:
    """Relative loss of a probing round that verifies all and gains nothing, (S,)."""
    n = np.array(cost.ladder)
    rows = np.minimum(n * (1 + PROBE_DRAFT_TOKENS), cost.max_rows)
    plain = cost.target_s[n] + cost.every_round_s
    extra = cost.target_s[rows] - cost.target_s[n] + cost.feed_s[item.drafter][rows]
    probing = plain + extra + cost.draft_s[item.drafter][:, PROBE_DRAFT_TOKENS]
    result: FloatArray = 1.0 - plain / probing
    return result


def _reason(
    found: list[DrafterDecision],
    statistics: tuple[DrafterStatistics, ...],
    cost: CostModel,
    present: int,
) -> str:
    parts = [
        _sentence(item, known, cost, present) for item, known in zip(found, statistics, strict=True)
    ]
    return "two_stage: " + "; ".join(parts)


def _sentence(
    item: DrafterDecision, known: DrafterStatistics, cost: CostModel, present: int
) -> str:
    n, d = cost.ladder[present], int(item.draft_tokens[present])
    off_rate = float(cost.off_rate()[present])
    told = words.evidence(known.verified)
    if d == 0:
        return words.off(item.drafter, n, off_rate) + told
    verify, rate = int(item.verify_tokens[present, d]), float(item.rate[present])
    drafts = words.drafting(item.drafter, n, (d, verify), float(item.accepted[present, d]), rate)
    return drafts + words.against(rate, off_rate) + told
