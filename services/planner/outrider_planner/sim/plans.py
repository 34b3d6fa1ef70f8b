"""A plan as arrays: what a simulated worker looks up in every round.

Knows how a worker reads a plan: the next larger ladder step, drafts per request scaled to the n
that runs, classes without a map fall back to the one for all. Does not know rounds or time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from outrider_planner.core.types import (
    MAX_BINS,
    DrafterPlan,
    FloatArray,
    IntArray,
    Plan,
    ScoreMap,
)

_CONDITIONAL_PRIOR = 0.6


class PlanTables:
    """One plan for one drafter and a fixed order of classes."""

    def __init__(self, plan: Plan, drafter: str, classes: Sequence[str], positions: int) -> None:
        self.plan, self.positions = plan, positions
        self._budget = next(item for item in plan.drafters if item.drafter == drafter)
        self.rank = _ranks(plan, drafter, classes, positions)

    def draft_tokens(self, requests: int) -> int:
        """d of the next drafts."""
        return min(self._budget.draft_tokens[self._step(requests)], self.positions)

    def verify_tokens(self, requests: int, carried: int) -> int:
        """V of a round that carries drafts of length d."""
        if carried == 0:
            return 0
        step = self._step(requests)
        of_step = self.plan.requests_ladder[step]
        row = self._budget.target_rows[step]
        planned = row[min(carried, len(row) - 1)] - of_step
        return -(-max(planned, 0) * requests // of_step)

    def _step(self, requests: int) -> int:
        ladder = self.plan.requests_ladder
        return min(bisect_left(ladder, requests), len(ladder) - 1)


def fixed_plan(
    ladder: tuple[int, ...],
    drafter: str,
    draft_tokens: Sequence[int],
    target_rows: Sequence[Sequence[int]],
    maps: Sequence[tuple[str, FloatArray]] = (),
    policy: str = "fixed",
) -> Plan:
    """A plan that never changes; ``maps``: (class, survival (K, S))."""
    budget = DrafterPlan(drafter, tuple(draft_tokens), tuple(map(tuple, target_rows)))
    score_maps = tuple(
        ScoreMap(1, drafter, name, tuple(map(tuple, survival.tolist()))) for name, survival in maps
    )
    return Plan(1, ladder, (budget,), (0.0,) * len(ladder), score_maps, policy=policy)


def static_plan(
    ladder: tuple[int, ...], drafter: str, draft_tokens: int, positions: int, most_rows: int
) -> Plan:
    """K at every n, all of it verified."""
    rows = [
        [min(n * (1 + d), most_rows) if draft_tokens else n for d in range(positions + 1)]
        for n in ladder
    ]
    lengths = [min(draft_tokens, positions)] * len(ladder)
    return fixed_plan(ladder, drafter, lengths, rows, policy=f"static:{draft_tokens}")


def _ranks(plan: Plan, drafter: str, classes: Sequence[str], positions: int) -> IntArray:
    """(C, K, S): 0 for the draft to verify first; equal survivals share a rank."""
    maps = {item.request_class: item for item in plan.score_maps if item.drafter == drafter}
    weights = {rule.request_class: rule.weight for rule in plan.class_rules}
    values = np.stack(
        [
            weights.get(name, 1.0) * _survival(maps.get(name, maps.get("")), positions)
            for name in classes
        ]
    )
    _, place = np.unique(-values, return_inverse=True)
    return place.reshape(values.shape).astype(np.uint16)


def _survival(item: ScoreMap | None, positions: int) -> FloatArray:
    """(K, S): deeper positions and higher bins than mapped repeat the last one."""
    if item is None:
        prior = _CONDITIONAL_PRIOR ** np.arange(1.0, positions + 1)
        return np.tile(prior[:, None], MAX_BINS)
    known = np.array(item.survival)
    rows = np.minimum(np.arange(positions), known.shape[0] - 1)
    columns = np.minimum(np.arange(MAX_BINS), known.shape[1] - 1)
    found: FloatArray = known[rows[:, None], columns]
    return found
