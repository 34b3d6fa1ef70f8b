"""Where a plan's numbers come from: a worker's rounds, the deployment, the fleet, stored tables.

Knows how much evidence each source holds and the sentence that says a worker started warm. Does
not know how the sources are blended.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.evidence import SlowCounts
from outrider_planner.core.sums import FLEET_CLASS
from outrider_planner.core.worker_state import WorkerState

# With fewer verified drafts of its own, what a worker was given still decides.
OWN_EVIDENCE_TOKENS = 64.0


@dataclass(frozen=True, slots=True)
class Sources:
    """Verified drafts by source, decayed counts, all drafters together; and the cost table's.

    ``cost``: "measured" by the worker, "stored" by another one of the same identity, or "none";
    ``table_digest`` names that identity.
    """

    own_verified: float
    deployment_verified: float
    fleet_verified: float
    cost: str
    table_digest: str

    @property
    def warm(self) -> bool:
        """Whether what the worker was given outweighs what it has seen."""
        given = self.deployment_verified + self.fleet_verified > 0 or self.cost == "stored"
        return given and self.own_verified < OWN_EVIDENCE_TOKENS

    def sentence(self) -> str:
        """What a cold or warm start rests on, for the plan's reason and the log; "" when neither
        matters any more."""
        parts = []
        if self.own_verified < OWN_EVIDENCE_TOKENS and self.deployment_verified > 0:
            parts.append(f"{self.deployment_verified:.0f} verified drafts of this deployment")
        elif self.own_verified < OWN_EVIDENCE_TOKENS and self.fleet_verified > 0:
            parts.append(f"{self.fleet_verified:.0f} verified drafts of the fleet")
        if self.cost == "stored":
            parts.append(f"the stored cost table of identity {self.table_digest}")
        return "warm start from " + " and ".join(parts) if parts else ""


def sources(worker: WorkerState, own: SlowCounts, fleet: SlowCounts, table_digest: str) -> Sources:
    """Sums over a worker's drafters, in its own sums and those of the store."""
    names = {traits.name for traits in worker.hello.drafters}
    cost = "none"
    if worker.costs.has_table:
        cost = "stored" if worker.stored_table else "measured"
    return Sources(
        own_verified=_verified(worker.fast, names),
        deployment_verified=_verified(own, names),
        fleet_verified=_verified({k: c for k, c in fleet.items() if k[1] == FLEET_CLASS}, names),
        cost=cost,
        table_digest=table_digest,
    )


def _verified(counts: SlowCounts, drafters: set[str]) -> float:
    return float(sum(item.verified.sum() for (name, _), item in counts.items() if name in drafters))
