"""The seam between statistics and plans.

Knows the shape of what a policy gets and gives. No clock, no I/O, no unseeded chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.search import DrafterDecision
from outrider_planner.core.types import (
    DrafterTraits,
    IntArray,
    Objective,
    ProbeDirective,
    WorkerLimits,
)


@dataclass(frozen=True, slots=True, eq=False)
class DrafterStatistics:
    """What is believed of one drafter; ``verified`` is the evidence behind it (decayed count)."""

    traits: DrafterTraits
    gain: GainModel
    verified: float


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Tables for all drafters, one per ladder step, and why. ``reason`` is a sentence."""

    drafters: tuple[DrafterDecision, ...]
    probe: ProbeDirective
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Statistics at one moment. ``present_requests``: n of the latest round, 0 when idle."""

    ladder: tuple[int, ...]
    present_requests: int
    drafters: tuple[DrafterStatistics, ...]
    previous: Decision | None = None


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


def fixed_decision(
    drafter: str, ladder: tuple[int, ...], positions: int, draft_tokens: int, limits: WorkerLimits
) -> DrafterDecision:
    """The same d at every n, verifying all that exists; nothing is forecast (zeros)."""
    n = np.array(ladder)
    most = np.maximum(limits.max_rows_per_forward - n, 0)
    carried = np.arange(positions + 1) * (draft_tokens > 0)
    verify: IntArray = np.minimum(n[:, None] * carried[None, :], most[:, None])
    zeros = np.zeros(verify.shape)
    draft = np.full(n.size, min(draft_tokens, positions), dtype=np.int64)
    return DrafterDecision(drafter, draft, verify, np.zeros(n.size), zeros, zeros, zeros)


def draft_bound(traits: DrafterTraits, limits: WorkerLimits) -> int:
    """K of one drafter."""
    return min(traits.max_draft_tokens, limits.max_draft_tokens)
