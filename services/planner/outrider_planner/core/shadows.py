"""Policies that run beside the live one: decided on the same basis, never applied.

Knows each shadow's latest decision and what it predicts at the present load. One worker is
evaluated at a time, the longest waiting first, so that shadows cost a bounded share of a planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_planner.core.cells import Cell, steady
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision, Policy


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a policy would do now; ``cell`` None and an ``error`` where it could not decide."""

    policy: str
    cell: Cell | None
    error: str = ""


@dataclass(slots=True, eq=False)
class _Kept:
    evaluated_s: float
    shadows: tuple[Shadow, ...] = ()
    decisions: dict[str, Decision] = field(default_factory=dict)


class ShadowBook:
    """By worker incarnation."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def of(self, incarnation: str) -> tuple[Shadow, ...]:
        """The latest evaluation; empty before the first and without shadows."""
        kept = self._kept.get(incarnation)
        return kept.shadows if kept else ()

    def evaluate_next(self, basis: Mapping[str, Basis], now_s: float) -> None:
        """Evaluates the shadows of the worker whose turn it is."""
        for incarnation in [i for i in self._kept if i in basis and not _wanted(basis[i])]:
            del self._kept[incarnation]
        turn = min(
            ((self._evaluated_s(i), i) for i, item in basis.items() if _wanted(item)), default=None
        )
        if turn is not None:
            self._evaluate(turn[1], basis[turn[1]], now_s)

    def forget(self, incarnation: str) -> None:
        """A worker left long ago."""
        self._kept.pop(incarnation, None)

    def _evaluated_s(self, incarnation: str) -> float:
        kept = self._kept.get(incarnation)
        return kept.evaluated_s if kept else float("-inf")

    def _evaluate(self, incarnation: str, basis: Basis, now_s: float) -> None:
        before = self._kept.get(incarnation, _Kept(now_s)).decisions
        kept = _Kept(now_s)
        shadows = []
        for policy in basis.settled.shadows:
            shadow, decision = _shadow(policy, basis, before.get(policy.name))
            shadows.append(shadow)
            if decision is not None:
                kept.decisions[policy.name] = decision
        kept.shadows = tuple(shadows)
        self._kept[incarnation] = kept


def _wanted(basis: Basis) -> bool:
    return bool(basis.settled.shadows) and basis.cost is not None


def _shadow(
    policy: Policy, basis: Basis, previous: Decision | None
) -> tuple[Shadow, Decision | None]:
    assert basis.cost is not None
    try:
        decision = basis.decide(policy, previous)
        found = steady(decision, basis.snapshot.drafters, basis.cost, basis.step())
    except Exception as error:  # a policy from outside may raise anything; it is only a shadow
        return Shadow(policy.name, None, repr(error)), None
    return Shadow(policy.name, found), decision
