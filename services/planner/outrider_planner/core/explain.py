"""Why a worker is planned as it is: the chosen cell, its rivals, off, and the evidence.

Recomputed from what the latest decision was made of, so that deciding itself stays fast. Knows
what to lay open; how it is worded for people is `views` and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.caution import MOST_CAUTION
from outrider_planner.core.cells import Cell, cell, chosen, rivals
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision
from outrider_planner.core.policies.base import DrafterStatistics
from outrider_planner.core.search import REPLACEMENT_MARGIN, TIE_RATIO
from outrider_planner.core.sources import Sources
from outrider_planner.core.types import Objective


@dataclass(frozen=True, slots=True)
class DrafterWhy:
    """One drafter at one n. ``chosen`` None: the plan says nothing of it, or nothing has a price.

    ``rivals``: the best cells of other draft lengths. ``survival``: estimated P(first j drafts all
    accepted) by position, classes and bins pooled. ``verified``: decayed count behind it. ``note``:
    why a rival that is predicted to do better was not taken; "" where there is none.
    """

    drafter: str
    chosen: Cell | None
    rivals: tuple[Cell, ...]
    off: Cell | None
    survival: tuple[float, ...]
    length_survival: tuple[float, ...]
    verified: float
    note: str


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
        note=_note(basis, taken, others),
    )


def _note(basis: Basis, taken: Cell | None, others: tuple[Cell, ...]) -> str:
    if taken is None or not others:
        return ""
    best = others[0]
    gain_ratio = best.rate_tokens_per_s / taken.rate_tokens_per_s - 1.0
    if gain_ratio <= TIE_RATIO:
        return ""
    said = f"drafting {best.draft_tokens} is predicted to give {gain_ratio:.2%} more"
    if basis.objective is Objective.LATENCY:
        return f"{said}, which the bound on latency, or what a change must promise, forbids"
    if gain_ratio <= MOST_CAUTION + REPLACEMENT_MARGIN:
        return f"{said}, less than a change must promise for its doubt and its margin"
    return f"{said}, but the policy {basis.settled.policy.name} does not choose by that"


def survival(known: DrafterStatistics) -> tuple[float, ...]:
    """Mean survival of the drafts of each position, (K,); empty where no estimate was kept."""
    found = known.estimates
    if found is None:
        return ()
    by_class = (found.survival * found.bin_share).sum(axis=-1)
    return tuple((found.class_share @ by_class).tolist())
