"""What a plan is: budgets for every n, and how to read them. Plain values, made by the planner."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DrafterBudget:
    """One drafter's part of a plan, by ladder step."""

    draft_tokens: tuple[int, ...]
    # target_rows[step][carried d]
    target_rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ScoreMap:
    """(position, bin) → survival, non-increasing along a chain."""

    version: int
    survival: tuple[tuple[float, ...], ...]

    def score(self, position: int, score_bin: int) -> float:
        """Deeper positions than mapped go on with the last one; unknown bins with the nearest."""
        row = self.survival[min(position, len(self.survival) - 1)]
        return row[min(score_bin, len(row) - 1)]


@dataclass(frozen=True, slots=True)
class Probe:
    """Bounded exploration while the plan says off (host drafters: a share of rounds)."""

    cohort_share: float = 0.0
    plain_share: float = 0.0
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GuardThresholds:
    """θ_min in tokens, and the relative loss that θ is sized to detect (planner.md)."""

    minimum_tokens: float = 8.0
    detectable_loss_ratio: float = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """Budgets for every n. An n between two steps of the ladder uses the next larger one."""

    version: int
    requests_ladder: tuple[int, ...]
    budgets: Mapping[str, DrafterBudget]
    score_maps: Mapping[tuple[str, str], ScoreMap] = field(default_factory=dict)
    class_caps: Mapping[str, int] = field(default_factory=dict)
    class_weights: Mapping[str, float] = field(default_factory=dict)
    probe: Probe = Probe()
    guard: GuardThresholds = GuardThresholds()
    validity_s: float = 5.0
    grace_s: float = 5.0
    report_interval_s: float = 0.25
    policy: str = ""
    reason: str = ""

    def draft_tokens(self, drafter: str, requests: int) -> int:
        """Stage 2: how long the drafts made at the end of a round of n requests should be."""
        budget = self.budgets.get(drafter)
        if budget is None or not self.requests_ladder:
            return 0
        return budget.draft_tokens[self._step(requests)]

    def target_rows(self, drafter: str, requests: int, carried_tokens: int) -> int:
        """Stage 1: rows of the target forward for n requests with drafts of length d."""
        budget = self.budgets.get(drafter)
        if budget is None or not self.requests_ladder or carried_tokens == 0:
            return requests
        row = budget.target_rows[self._step(requests)]
        planned = row[min(carried_tokens, len(row) - 1)]
        step_requests = self.requests_ladder[self._step(requests)]
        # The step may stand for a larger n: its drafts per request are what is meant.
        verify_rows = max(0, planned - step_requests)
        return requests + -(-verify_rows * requests // step_requests)

    def _step(self, requests: int) -> int:
        return min(bisect_left(self.requests_ladder, requests), len(self.requests_ladder) - 1)


OFF = Plan(version=0, requests_ladder=(), budgets={}, policy="off", reason="no plan in force")


def clamp(planned: int, limit: int) -> tuple[int, bool]:
    """A planned number within 0…limit, and whether it had to be changed."""
    clamped = min(max(planned, 0), limit)
    return clamped, clamped != planned
