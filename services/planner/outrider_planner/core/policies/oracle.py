"""``oracle``: the two-stage search with the true survivals, for simulations.

Knows what no planner can know: it is handed the truth and takes it at once, without margin or
probes. The service refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.policies.base import Decision, Snapshot
from outrider_planner.core.policies.static import OffPolicy
from outrider_planner.core.search import decide
from outrider_planner.core.types import Objective, ProbeDirective, WorkerLimits


@dataclass(frozen=True, slots=True)
class OraclePolicy:
    """``truth``: the present true gain model of a drafter, by its name."""

    truth: Callable[[str], GainModel]

    @property
    def name(self) -> str:
        return "oracle"

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """The best plan there is at these costs; only throughput is looked at."""
        if cost is None:
            off = OffPolicy("no cost table was measured, so oracle cannot price a row")
            return off.decide(snapshot, cost, limits, objective)
        found = tuple(
            decide(item.traits.name, self.truth(item.traits.name), cost, None)
            for item in snapshot.drafters
        )
        return Decision(found, ProbeDirective(), "oracle: true survivals", ())
