"""Why a worker is planned as it is: the chosen cell, its rivals, off, and the evidence.

Recomputed from what the latest decision was made of, so that deciding itself stays fast. Knows
what to lay open; how it is worded for people is `views` and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.cells import Cell, cell, chosen, rivals
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision
from outrider_planner.core.policies.base import DrafterStatistics
from outrider_planner.core.sources import Sources


@dataclass(frozen=True, slots=True)
class DrafterWhy:
    """One drafter at one n. ``chosen`` None: the plan says nothing of it, or nothing has a price.

    ``rivals``: the best cells of other draft lengths. ``survival``: estimated P(first j drafts all
    accepted) by position, classes and bins pooled. ``verified``: decayed count behind it.
    """

    drafter: str
    chosen: Cell | None
    rivals: tuple[Cell, ...]
    off: Cell | None
    survival: tuple[float, ...]
    length_survival: tuple[float, ...]
    verified: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """``requests``: n as asked; ``ladder_requests``: the step that serves it."""

    requests: int
    ladder_requests: int
    policy: str
    objective: str
    reason: str
    sources: Sources
    drafters: tuple[DrafterWhy, ...]


def explain(basis: Basis, decision: Decision, requests: int | None = None) -> Explanation:
    """Why this decision, at n or the present load; None of it needs the time."""
    step = basis.step(requests)
    asked = max(basis.snapshot.present_requests, 1) if requests is None else requests
    return Explanation(
        requests=asked,
        ladder_requests=basis.snapshot.ladder[step],
        policy=basis.settled.policy.name,
        objective=basis.objective.value,
        reason=decision.reason,
        sources=basis.sources,
        drafters=tuple(_drafter(basis, decision, item, step) for item in basis.snapshot.drafters),
    )


def _drafter(basis: Basis, decision: Decision, known: DrafterStatistics, step: int) -> DrafterWhy:
    cost = basis.cost
    off = None if cost is None else cell(known, cost, step, 0, 0)
    taken = None if cost is None else chosen(decision, known, cost, step)
    beaten = taken or off
    others = () if cost is None or beaten is None else rivals(known, cost, step, beaten)
    return DrafterWhy(
        drafter=known.traits.name,
        chosen=taken,
        rivals=others,
        off=off,
        survival=survival(known),
        length_survival=tuple(known.gain.length_survival.tolist()),
        verified=known.verified,
    )


def survival(known: DrafterStatistics) -> tuple[float, ...]:
    """Mean survival of the drafts of each position, (K,); empty where no estimate was kept."""
    found = known.estimates
    if found is None:
        return ()
    by_class = (found.survival * found.bin_share).sum(axis=-1)
    return tuple((found.class_share @ by_class).tolist())
