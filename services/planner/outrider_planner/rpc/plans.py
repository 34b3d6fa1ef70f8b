"""Plans as wire messages; what many workers share is encoded once.

Knows both shapes. Judges nothing, and does not know streams.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.core.types import Plan, ScoreMap

# The price first: it differs between nearly all plans.
_SHARED = ("rate_tokens_per_s", *(f.name for f in fields(Plan) if f.name != "version"))
# A group has two at a time, with plain rounds and without; other groups come in between.
_KEPT_PLANS = 16


class PlanEncoder:
    """Messages for plans. One plan for many workers, alike but for its version, is encoded once."""

    def __init__(self) -> None:
        self._latest: deque[tuple[Plan, wire.Plan]] = deque(maxlen=_KEPT_PLANS)

    def response(self, plan: Plan) -> wire.PlanResponse:
        """The message that carries a plan; the caller's own."""
        response = wire.PlanResponse(plan=self._encoded(plan))
        response.plan.version = plan.version
        return response

    def _encoded(self, plan: Plan) -> wire.Plan:
        """Of some version."""
        for known, message in self._latest:
            if _shares_all(plan, known):
                return message
        message = plan_to_wire(plan)
        self._latest.appendleft((plan, message))
        return message


def _shares_all(plan: Plan, known: Plan) -> bool:
    """Whether two plans hold the same objects, but for the version."""
    return all(getattr(plan, name) is getattr(known, name) for name in _SHARED)


def plan_to_wire(plan: Plan) -> wire.Plan:
    """The message a worker receives."""
    return wire.Plan(
        version=plan.version,
        requests_ladder=plan.requests_ladder,
        drafters=[
            wire.DrafterPlan(
                drafter=item.drafter,
                draft_tokens=item.draft_tokens,
                max_carried_tokens=item.max_carried_tokens,
                target_rows=[rows for step in item.target_rows for rows in step],
            )
            for item in plan.drafters
        ],
        rate_tokens_per_s=plan.rate_tokens_per_s,
        score_maps=map(_score_map_to_wire, plan.score_maps),
        class_rules=[
            wire.ClassRule(
                request_class=rule.request_class,
                weight=rule.weight,
                max_draft_tokens=rule.max_draft_tokens,
            )
            for rule in plan.class_rules
        ],
        probe=wire.ProbeDirective(
            cohort_share=plan.probe.cohort_share,
            plain_share=plan.probe.plain_share,
            draft_tokens=plan.probe.draft_tokens,
        ),
        guard=wire.GuardSettings(
            enabled=plan.guard.enabled,
            minimum_threshold_tokens=plan.guard.minimum_threshold_tokens,
            detectable_loss_ratio=plan.guard.detectable_loss_ratio,
        ),
        report_interval_ms=plan.report_interval_ms,
        validity_ms=plan.validity_ms,
        grace_ms=plan.grace_ms,
        policy=plan.policy,
        objective=plan.objective,
        reason=plan.reason,
        chain=wire.ChainShape(),
    )


def _score_map_to_wire(item: ScoreMap) -> wire.ScoreMap:
    return wire.ScoreMap(
        version=item.version,
        drafter=item.drafter,
        request_class=item.request_class,
        positions=len(item.survival),
        bins=len(item.survival[0]) if item.survival else 0,
        survival=[value for row in item.survival for value in row],
    )
