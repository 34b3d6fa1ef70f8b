"""Policies that look at nothing: a fixed draft length, and none at all."""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.cost import CostModel
from outrider_planner.core.policies.base import Decision, Snapshot, draft_bound, fixed_decision
from outrider_planner.core.types import Objective, ProbeDirective, WorkerLimits


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Drafts K tokens at every n and verifies all drafts that the row limit allows."""

    draft_tokens: int

    @property
    def name(self) -> str:
        return f"static:{self.draft_tokens}"

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """Bounded by what each drafter and the worker can do."""
        wanted = snapshot.bounds.capped(self.draft_tokens)
        drafters = tuple(
            fixed_decision(
                item.traits.name, snapshot.ladder, draft_bound(item.traits, limits), wanted, limits
            )
            for item in snapshot.drafters
        )
        planned = max((int(item.draft_tokens.max()) for item in drafters), default=0)
        bound = "" if planned == self.draft_tokens else f", bounded from {self.draft_tokens}"
        reason = f"{self.name}: {planned or 'no'} drafts at every load, by configuration{bound}"
        return Decision(drafters, ProbeDirective(), reason, snapshot.bounds.class_rules)


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Never drafts. ``why`` tells a planned off from one that lacks something."""

    why: str = "speculation is off by configuration"

    @property
    def name(self) -> str:
        return "off"

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """d = 0 and B = n everywhere."""
        drafters = tuple(
            fixed_decision(
                item.traits.name, snapshot.ladder, draft_bound(item.traits, limits), 0, limits
            )
            for item in snapshot.drafters
        )
        return Decision(drafters, ProbeDirective(), f"off: {self.why}", snapshot.bounds.class_rules)
