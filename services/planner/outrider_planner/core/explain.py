"""Why a worker is planned as it is: the chosen cell, its rivals, off, and the evidence.

Recomputed from what the latest decision was made of, so that deciding itself stays fast. Knows
what to lay open; how it is worded for people is `views` and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.cells import Cell, best_cell, cell, chosen, rivals
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision, Policy, words
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
    about, None where none was or no such draft can be verified. ``survival``: what the plan takes
    P(first j drafts all accepted) to be by position, of the drafts there are, classes and bins
    pooled; it never rises. ``verified``: decayed count behind it. ``note``: why a rival that is
    predicted to do better was not taken; "" where there is none.
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
    """About this step, in the same words at every one; the plan's own where nothing has a price."""
    policy, bound_s = basis.settled.policy, basis.snapshot.bounds.latency_bound_s
    parts = [_sentence(why, policy) for why in drafters if why.chosen is not None]
    if not parts:
        return decision.reason
    said = f"{policy.name}: {'; '.join(parts)}"
    if isinstance(policy, _FIXED):
        said += ", by configuration"
    elif bound_s and all(item.token_s is not None for item in decision.drafters):
        said += words.latency(decision.drafters, bound_s, step)
    return basis.told(said)


def _sentence(why: DrafterWhy, policy: Policy) -> str:
    """What is done with a drafter at one n, and what that is predicted to give."""
    taken, off, told = why.chosen, why.off, words.evidence(why.verified)
    assert taken is not None
    assert off is not None
    rate, off_rate = taken.rate_tokens_per_s, off.rate_tokens_per_s
    if taken.draft_tokens:
        planned = taken.draft_tokens, taken.verify_tokens
        drafts = words.drafting(why.drafter, taken.requests, planned, taken.accepted_tokens, rate)
        return drafts + words.against(rate, off_rate) + told
    if isinstance(policy, _FIXED):
        return f"{why.drafter} off at n={taken.requests}: {off_rate:.0f} tokens/s"
    return words.off(why.drafter, taken.requests, off_rate) + told


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
        survival=() if known.estimates is None else tuple(known.gain.survival.tolist()),
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
