"""The seam between statistics and plans.

Knows the shape of what a policy gets and gives. No clock, no I/O, no unseeded chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.policies.history import RoundHistory
from outrider_planner.core.search import DrafterDecision
from outrider_planner.core.types import (
    ClassRule,
    DrafterTraits,
    IntArray,
    Objective,
    ProbeDirective,
    WorkerLimits,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an operator wishes of every plan of a deployment.

    ``latency_bound_s``: the longest time between two tokens of a request, for the objective
    ``latency``. ``max_draft_tokens``: a cap on planned lengths, None for the workers' own.
    """

    latency_bound_s: float | None = None
    max_draft_tokens: int | None = None
    class_rules: tuple[ClassRule, ...] = ()

    def capped(self, draft_tokens: int) -> int:
        """A draft length within the cap."""
        if self.max_draft_tokens is None:
            return draft_tokens
        return min(draft_tokens, self.max_draft_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class DrafterStatistics:
    """What is believed of one drafter; ``verified`` is the evidence behind it (decayed count).

    ``classes`` names the first axis of ``estimates``; with them, rules and bounds of single
    classes can be planned for.
    """

    traits: DrafterTraits
    gain: GainModel
    verified: float
    classes: tuple[str, ...] = ()
    estimates: Estimates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Tables for all drafters, one per ladder step, and why. ``reason`` is a sentence."""

    drafters: tuple[DrafterDecision, ...]
    probe: ProbeDirective
    reason: str
    class_rules: tuple[ClassRule, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Statistics at one moment. ``present_requests``: n of the latest round, 0 when idle.

    ``rounds`` is kept for the policies that ask for it (``remembers_rounds``).
    """

    ladder: tuple[int, ...]
    present_requests: int
    drafters: tuple[DrafterStatistics, ...]
    previous: Decision | None = None
    bounds: Bounds = field(default_factory=Bounds)
    rounds: RoundHistory | None = None


class Policy(Protocol):
    """``(snapshot, cost, limits, objective) → decision``."""

    @property
    def name(self) -> str:
        """As written in the configuration, for example ``static:4``."""
        ...

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """Plans every step of the ladder; ``cost`` is None where nothing was measured."""
        ...


def remembers_rounds(policies: Sequence[Policy]) -> bool:
    """Whether any of these decides from single rounds: then ``Snapshot.rounds`` must be kept.

    A policy says so by a true attribute ``remembers_rounds``; most do not have it.
    """
    return any(getattr(policy, "remembers_rounds", False) for policy in policies)


def fixed_decision(
    drafter: str,
    ladder: tuple[int, ...],
    positions: int,
    draft_tokens: int | Sequence[int],
    limits: WorkerLimits,
) -> DrafterDecision:
    """d by configuration, one for all n or one per step, verifying all that exists.

    Nothing is forecast (zeros). Where d is 0, nothing carried is verified either.
    """
    n = np.array(ladder)
    draft = np.minimum(np.broadcast_to(np.array(draft_tokens, dtype=np.int64), n.shape), positions)
    most = np.maximum(limits.max_rows_per_forward - n, 0)
    carried = n[:, None] * np.arange(positions + 1) * (draft > 0)[:, None]
    verify: IntArray = np.minimum(carried, most[:, None])
    zeros = np.zeros(verify.shape)
    return DrafterDecision(drafter, draft, verify, np.zeros(n.size), zeros, zeros, zeros)


def draft_bound(traits: DrafterTraits, limits: WorkerLimits) -> int:
    """K of one drafter."""
    return min(traits.max_draft_tokens, limits.max_draft_tokens)
