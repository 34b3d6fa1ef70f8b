"""What a round really costs in a simulated world.

Knows true times, which may differ from the table a worker shows: by a factor, by noise, by a
change at some round. Does not know plans or acceptance. Every lookup is one array access.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider_planner.core.curves import CurveSet, GridSet
from outrider_planner.core.types import FloatArray, IntArray
from outrider_planner.sim.cost_tables import MachineTable


@dataclass(frozen=True, slots=True)
class TrueCosts:
    """How truth differs from the table: factors by part, and the spread of a round's time."""

    target_factor: float = 1.0
    draft_factor: float = 1.0
    noise: float = 0.02


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of one round: expected in all, and by part as measured with noise."""

    expected_s: float
    target_s: float
    feed_s: float
    draft_s: float
    host_s: float

    @property
    def measured_s(self) -> float:
        """All parts together."""
        return self.target_s + self.feed_s + self.draft_s + self.host_s


class Machine:
    """True times for up to ``requests`` requests that draft up to ``draft_tokens``."""

    def __init__(
        self, source: MachineTable, requests: int, draft_tokens: int, truth: TrueCosts
    ) -> None:
        self.source, self.truth = source, truth
        costs = source.table.drafters[0]
        target, feed = CurveSet.of(source.table.target), CurveSet.of(costs.feed)
        contexts = target.contexts
        self._context = float(contexts[0]), max(float(contexts[-1] - contexts[0]), 1.0)
        rows = np.arange(source.most_rows + 1)
        ends = (float(contexts[0]), float(contexts[-1]))
        self._target = _ends(target, ends, rows, truth.target_factor)
        self._feed = _ends(feed, ends, rows, truth.draft_factor)
        self._draft = _grid_ends(GridSet.of(costs.draft), ends, requests, draft_tokens)
        self._draft *= truth.draft_factor
        n = np.arange(requests + 1, dtype=np.float64)
        self._host: FloatArray = 1e-6 * (source.host_us + source.host_us_per_request * n)
        self.bucket_of = _buckets(source, self._target[0])

    def times(
        self, requests: int, rows: int, drafts: int, context_tokens: float, noise: FloatArray
    ) -> RoundTimes:
        """A round of n requests over so many rows that drafts d tokens; ``noise``: (4,) normals.

        ``context_tokens``: the mean of the requests'.
        """
        first, span = self._context
        part = min(max((context_tokens - first) / span, 0.0), 1.0)
        bucket = self.bucket_of[rows]
        fed = self._between(self._feed, part, bucket) if rows > requests or drafts else 0.0
        exact = (
            self._between(self._target, part, bucket),
            fed,
            float((1 - part) * self._draft[0, requests, drafts])
            + float(part * self._draft[1, requests, drafts]),
            float(self._host[requests]),
        )
        factor = 1.0 + self.truth.noise * noise
        return RoundTimes(sum(exact), *(float(s * f) for s, f in zip(exact, factor, strict=True)))

    def expected_s(
        self, requests: int, rows: IntArray, drafts: int, context_tokens: float
    ) -> FloatArray:
        """Expected seconds of rounds by row count."""
        nothing = np.zeros(4)
        each = [
            self.times(requests, int(row), drafts, context_tokens, nothing).expected_s
            for row in rows
        ]
        return np.array(each)

    def prepare_s(self, requests: int, drafts: int, context_tokens: float) -> float:
        """Expected seconds of drafting and of the host: D + c."""
        first, span = self._context
        part = min(max((context_tokens - first) / span, 0.0), 1.0)
        ends = self._draft[:, requests, drafts]
        return float((1 - part) * ends[0] + part * ends[1] + self._host[requests])

    @staticmethod
    def _between(ends: FloatArray, part: float, place: int) -> float:
        return float((1 - part) * ends[0, place] + part * ends[1, place])


def _ends(curves: CurveSet, ends: tuple[float, float], rows: IntArray, factor: float) -> FloatArray:
    """(2, R + 1): seconds by rows at the shortest and the longest measured context."""
    if not curves:
        return np.zeros((2, rows.size))
    seconds = np.stack([curves.between(context, rows) for context in ends]) * factor
    seconds[:, 0] = 0.0
    return seconds


def _grid_ends(
    grid: GridSet, ends: tuple[float, float], requests: int, draft_tokens: int
) -> FloatArray:
    n, d = np.meshgrid(np.arange(requests + 1), np.arange(draft_tokens + 1), indexing="ij")
    return np.stack(
        [grid.at(context, n.reshape(-1), d.reshape(-1)).reshape(n.shape) for context in ends]
    )


def _buckets(source: MachineTable, target_s: FloatArray) -> IntArray:
    """The launched row count by rows: of the buckets that hold them, the fastest."""
    rows = np.arange(source.most_rows + 1)
    if not source.pads_rows:
        return rows
    buckets = np.array(source.row_buckets)
    best = np.empty(buckets.size, dtype=np.int64)
    best[-1] = buckets[-1]
    for i in range(buckets.size - 2, -1, -1):
        best[i] = best[i + 1] if target_s[best[i + 1]] < target_s[buckets[i]] else buckets[i]
    result: IntArray = best[np.searchsorted(buckets, rows)]
    return result
