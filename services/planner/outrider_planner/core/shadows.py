"""Policies that run beside the live one: decided on the same basis, never applied.

Knows each shadow's latest decision and what it predicts at the present load. One policy of one
worker is evaluated at a time, the longest waiting first, so that whoever asks can bound the time
that shadows take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider_planner.core.cells import Cell, steady
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision, Policy

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a policy would do now; ``cell`` None and an ``error`` where it could not decide."""

    policy: str
    cell: Cell | None
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    evaluated_s: float
    shadow: Shadow
    decision: Decision | None


class ShadowBook:
    """By worker incarnation and policy."""

    def __init__(self) -> None:
        self._kept: dict[Key, _Kept] = {}

    def of(self, incarnation: str) -> tuple[Shadow, ...]:
        """The latest evaluations; empty before the first and without shadows."""
        return tuple(kept.shadow for key, kept in self._kept.items() if key[0] == incarnation)

    def evaluate_next(self, basis: Mapping[str, Basis], now_s: float) -> bool:
        """Evaluates whose turn it is; False where no worker has shadows."""
        wanted = {
            (incarnation, policy.name): policy
            for incarnation, item in basis.items()
            if item.cost is not None
            for policy in item.settled.shadows
        }
        self._kept = {key: kept for key, kept in self._kept.items() if key in wanted}
        turn = min(wanted, key=self._waiting_since, default=None)
        if turn is not None:
            before = self._kept.get(turn)
            found = _evaluated(wanted[turn], basis[turn[0]], before.decision if before else None)
            self._kept[turn] = _Kept(now_s, *found)
        return turn is not None

    def forget(self, incarnation: str) -> None:
        """A worker left long ago."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] != incarnation}

    def _waiting_since(self, key: Key) -> tuple[float, Key]:
        kept = self._kept.get(key)
        return kept.evaluated_s if kept else float("-inf"), key


def _evaluated(
    policy: Policy, basis: Basis, previous: Decision | None
) -> tuple[Shadow, Decision | None]:
    assert basis.cost is not None
    try:
        decision = basis.decide(policy, previous)
        found = steady(decision, basis.snapshot.drafters, basis.cost, basis.step())
    except Exception as error:  # a policy from outside may raise anything; it is only a shadow
        return Shadow(policy.name, None, repr(error)), None
    return Shadow(policy.name, found), decision
