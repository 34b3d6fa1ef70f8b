"""Why a worker is planned as it is: the chosen cell, its rivals, off, and the evidence.

Recomputed from what the latest decision was made of, so that deciding itself stays fast. Knows
what to lay open; how it is worded for people is `views` and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.cells import Cell, best_cell, cell, chosen, rivals
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision
from outrider_planner.core.policies.base import DrafterStatistics
from outrider_planner.core.policies.static import OffPolicy, StaticPolicy
from outrider_planner.core.policies.table import TablePolicy
from outrider_planner.core.policies.two_stage import TwoStagePolicy
from outrider_planner.core.search import TIE_RATIO
from outrider_planner.core.sources import Sources
from outrider_planner.core.types import Objective

# Policies that drafts are fixed by, whatever was measured.
_FIXED = (OffPolicy, StaticPolicy, TablePolicy)


@dataclass(frozen=True, slots=True)
class DrafterWhy:
    """One drafter at one n. ``chosen`` None: the plan says nothing of it, or nothing has a price.

    ``rivals``: the best cells of other draft lengths. ``asked``: the best cell of the length asked
    about, None where none was or no such draft can be verified. ``survival``: estimated
    P(first j drafts all accepted) by position, classes and bins pooled. ``verified``: decayed count
    behind it. ``note``: why a rival that is predicted to do better was not taken; "" where there is
    none.
    """

    drafter: str
    chosen: Cell | None
    rivals: tuple[Cell, ...]
    off: Cell | None
    survival: tuple[float, ...]
    length_survival: tuple[float, ...]
    verified: float
    note: str
    asked: Cell | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``requests``: n as asked; ``ladder_requests``: the step that serves it, which ``reason``
    speaks of."""

    requests: int
    ladder_requests: int
    policy: str
    objective: str
    reason: str
    sources: Sources
    drafters: tuple[DrafterWhy, ...]


def explain(
    basis: Basis,
    decision: Decision,
    requests: int | None = None,
    draft_tokens: int | None = None,
) -> Explanation:
    """Why this decision, at n or the present load, and what ``draft_tokens`` would bring there.

    None of it needs the time.
    """
    step = basis.step(requests)
    drafters = tuple(
        _drafter(basis, decision, item, step, draft_tokens) for item in basis.snapshot.drafters
    )
    asked = max(basis.snapshot.present_requests, 1) if requests is None else requests
    return Explanation(
        requests=asked,
        ladder_requests=basis.snapshot.ladder[step],
        policy=basis.settled.policy.name,
        objective=basis.objective.value,
        reason=_reason(basis, decision, drafters, step),
        sources=basis.sources,
        drafters=drafters,
    )


def _reason(basis: Basis, decision: Decision, drafters: tuple[DrafterWhy, ...], step: int) -> str:
    """The decision's own sentence where it is about this step, one about this step elsewhere."""
    if step == basis.step() or not drafters:
        return decision.reason
    tables = {item.drafter: item for item in decision.drafters}
    n = basis.snapshot.ladder[step]
    parts = [
        _sentence(why, n, int(tables[why.drafter].draft_tokens[step]))
        for why in drafters
        if why.drafter in tables
    ]
    fixed = ", by configuration" if isinstance(basis.settled.policy, _FIXED) else ""
    return basis.told(f"{basis.settled.policy.name}: {'; '.join(parts)}{fixed}")


def _sentence(why: DrafterWhy, requests: int, draft_tokens: int) -> str:
    """What is done with a drafter at one n, and what that is predicted to give."""
    does = f"drafts {draft_tokens}" if draft_tokens else "off"
    said, taken, off = f"{why.drafter} at n={requests}: {does}", why.chosen, why.off
    if taken is None or off is None:
        return f"{said}; no costs were measured"
    plain = f"{off.rate_tokens_per_s:.0f} tokens/s"
    if not draft_tokens:
        return f"{said}, {plain}"
    return (
        f"{said}, verifies up to {taken.verify_tokens} ({taken.rows} rows), "
        f"{taken.accepted_tokens:.2f} accepted per round, {taken.rate_tokens_per_s:.0f} tokens/s "
        f"against {plain} off ({taken.rate_vs_off_ratio:.2f}x)"
    )


def _drafter(
    basis: Basis, decision: Decision, known: DrafterStatistics, step: int, asked: int | None
) -> DrafterWhy:
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
        asked=None if cost is None or asked is None else best_cell(known, cost, step, asked),
    )


def _note(basis: Basis, taken: Cell | None, others: tuple[Cell, ...]) -> str:
    if taken is None or not others:
        return ""
    policy, better = basis.settled.policy, _better(taken, others[0])
    if isinstance(policy, _FIXED):
        rest = better or "no other length is predicted to give more"
        return f"fixed by the policy {policy.name}; two_stage's forecast: {rest}"
    if not better:
        return ""
    if others[0].draft_tokens > basis.snapshot.bounds.capped(others[0].draft_tokens):
        cap = basis.snapshot.bounds.max_draft_tokens
        return f"{better}, which the settings' max_draft_tokens of {cap} forbids"
    if not isinstance(policy, TwoStagePolicy):
        return f"{better}, but the policy {policy.name} does not choose by that"
    if basis.objective is Objective.LATENCY:
        return f"{better}, which the bound on latency, or what a change must promise, forbids"
    return f"{better}, less than a change must promise"


def _better(taken: Cell, best: Cell) -> str:
    """By how much the best rival is predicted to do better; "" where it is not."""
    gain_ratio = best.rate_tokens_per_s / taken.rate_tokens_per_s - 1.0
    if gain_ratio <= TIE_RATIO:
        return ""
    does = f"drafting {best.draft_tokens}" if best.draft_tokens else "not drafting"
    return f"{does} is predicted to give {gain_ratio:.2%} more"


def survival(known: DrafterStatistics) -> tuple[float, ...]:
    """Mean survival of the drafts of each position, (K,); empty where no estimate was kept."""
    found = known.estimates
    if found is None:
        return ()
    by_class = (found.survival * found.bin_share).sum(axis=-1)
    return tuple((found.class_share @ by_class).tolist())
