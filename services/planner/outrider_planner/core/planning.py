"""From a worker's state and its deployment's settings to a decision, and what it rests on.

Knows what a decision is made from. Does not know streams, stores, or whether a plan is worth
sending.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from outrider_planner.core.cost import CostModel, step_of
from outrider_planner.core.policies import Decision, Policy, Snapshot
from outrider_planner.core.settings_book import Settled
from outrider_planner.core.sources import Sources
from outrider_planner.core.types import Objective, WorkerLimits


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """All that the latest decision of a worker was made from; enough to make it again."""

    snapshot: Snapshot
    cost: CostModel | None
    limits: WorkerLimits
    settled: Settled
    sources: Sources

    @property
    def objective(self) -> Objective:
        """Of the deployment's settings."""
        return self.settled.settings.objective

    def step(self, requests: int | None = None) -> int:
        """The ladder step that serves n, or the present load (1 when idle)."""
        n = max(self.snapshot.present_requests, 1) if requests is None else requests
        return int(step_of(self.snapshot.ladder, np.array([n]))[0])

    def decide(self, policy: Policy | None = None, previous: Decision | None = None) -> Decision:
        """The decision of the settings' policy, or another's, which has its own ``previous``.

        Raises:
            Exception: whatever a policy from outside raises.
        """
        if policy is None:
            policy, snapshot = self.settled.policy, self.snapshot
        else:
            snapshot = replace(self.snapshot, previous=previous)
        return policy.decide(snapshot, self.cost, self.limits, self.objective)
