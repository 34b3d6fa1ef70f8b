"""What single rounds brought, kept exactly as ``lightspec`` keeps it.

Knows moving averages by the triple (n, B, d) and by depth, and costs as they were first measured.
Does not know decisions.
Source: planner.md, "The baseline to beat"; its weaknesses are meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from outrider_planner.core.cost import CostModel, CostTracker, request_ladder
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    MAX_DRAFT_TOKENS,
    BoolArray,
    FloatArray,
    Hello,
    RoundColumns,
)

OLD_WEIGHT = 0.9
# At one n. Beyond it the pairs that were seen first are forgotten first.
MOST_PAIRS = 1024


class RoundHistory:
    """Moving averages over rounds: tokens per row by exact (n, B, d), survival by depth.

    Nothing ages but by its own samples, and the first sample of a cell is believed as it is.
    """

    def __init__(self, sparse: bool = False, costs: CostModel | None = None) -> None:
        """``sparse``: short pools are this drafter's nature, no sign of a new request.

        ``costs``: as measured before the first round, at the shortest context, never corrected.
        """
        self.costs = costs
        self._sparse = sparse
        self._progress: dict[int, dict[tuple[int, int], float]] = {}
        self._survival = np.ones(MAX_DRAFT_TOKENS)
        self._seen = np.zeros(MAX_DRAFT_TOKENS, dtype=bool)

    @classmethod
    def of(cls, hello: Hello) -> RoundHistory:
        """Of a worker that has run nothing yet."""
        costs = CostTracker(hello, request_ladder(hello.limits.max_running_requests)).model()
        return cls(any(traits.sparse for traits in hello.drafters), costs)

    def copy(self) -> RoundHistory:
        """As it is now."""
        other = RoundHistory(self._sparse, self.costs)
        other._progress = {n: dict(pairs) for n, pairs in self._progress.items()}
        other._survival, other._seen = self._survival.copy(), self._seen.copy()
        return other

    def observe(self, rounds: RoundColumns, cells: Sequence[tuple[CellKey, Counts]]) -> None:
        """Takes in one report's rounds, oldest first, and its outcomes by position.

        Rounds with a first-time request are skipped: it has no drafts yet, so the pool is short.
        """
        counted = self._counted(rounds)
        columns = (rounds.requests, rounds.target_rows, rounds.carried_draft_tokens)
        triples = zip(*(column[counted].tolist() for column in columns), strict=True)
        progress = rounds.emitted_tokens[counted] / rounds.target_rows[counted]
        for (n, rows, length), value in zip(triples, progress.tolist(), strict=True):
            self._take(n, (rows, length), value)
        # Outcomes are known per report, not per round: all of its rounds must have verified all.
        if counted.all() and (rounds.target_rows == rounds.requests + rounds.pool_tokens).all():
            self._observe_depths(rounds, cells)

    def progress(self, requests: int) -> Mapping[tuple[int, int], float]:
        """Tokens per row at this n, by (B, d); only what was seen."""
        return self._progress.get(requests, {})

    def survival(self, positions: int) -> FloatArray:
        """P(accepted through depth j), (K,); 1 for depths that were never seen."""
        return self._survival[:positions]

    def _take(self, requests: int, pair: tuple[int, int], value: float) -> None:
        at_n = self._progress.setdefault(requests, {})
        at_n[pair] = OLD_WEIGHT * at_n.get(pair, value) + (1.0 - OLD_WEIGHT) * value
        if len(at_n) > MOST_PAIRS:
            del at_n[next(iter(at_n))]

    def _counted(self, rounds: RoundColumns) -> BoolArray:
        if self._sparse:
            return np.ones(len(rounds), dtype=bool)
        full: BoolArray = rounds.pool_tokens == rounds.requests * rounds.carried_draft_tokens
        return full

    def _observe_depths(
        self, rounds: RoundColumns, cells: Sequence[tuple[CellKey, Counts]]
    ) -> None:
        verified, accepted = np.zeros(MAX_DRAFT_TOKENS), np.zeros(MAX_DRAFT_TOKENS)
        for _, counts in cells:
            verified[: counts.asked.size] += counts.verified.sum(axis=-1)
            accepted[: counts.asked.size] += counts.accepted.sum(axis=-1)
        depths = np.arange(MAX_DRAFT_TOKENS)
        samples = (rounds.carried_draft_tokens[:, None] > depths).sum(axis=0)
        fresh = (verified > 0) & (samples > 0)
        keep = np.where(self._seen, OLD_WEIGHT**samples, 0.0)[fresh]
        ratio = accepted[fresh] / verified[fresh]
        self._survival[fresh] = keep * self._survival[fresh] + (1.0 - keep) * ratio
        self._seen |= fresh
