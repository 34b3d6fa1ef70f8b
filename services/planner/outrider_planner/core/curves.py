"""Measured curves and grids as arrays: interpolation over rows, requests, lengths and context.

Knows the cost table's shape and how a GPU pads rows. Does not know what was measured later nor
which plan is best. Seconds; row counts and contexts ascend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider_planner.core.isotonic import isotonic
from outrider_planner.core.types import CostCurve, DraftCostGrid, FloatArray, IntArray

# Dips of a curve smaller than this are noise of the measurement.
POOLED_DIP_RATIO = 0.03
_US = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class CurveSet:
    """One pass at several contexts. ``rows`` (R,), ``contexts`` (X,), ``seconds`` (X, R)."""

    rows: IntArray
    contexts: FloatArray
    seconds: FloatArray

    @classmethod
    def of(cls, curves: Sequence[CostCurve]) -> CurveSet:
        """Keeps the row counts that all curves share; empty without curves."""
        if not curves:
            return cls(np.zeros(0, dtype=np.int64), np.zeros(1), np.zeros((1, 0)))
        ordered = sorted(curves, key=lambda curve: curve.context_tokens)
        rows = sorted(set.intersection(*(set(curve.rows) for curve in ordered)))
        seconds = [
            [curve.median_us[curve.rows.index(row)] * _US for row in rows] for curve in ordered
        ]
        contexts = [float(curve.context_tokens) for curve in ordered]
        return cls(np.array(rows, dtype=np.int64), np.array(contexts), np.array(seconds))

    def __bool__(self) -> bool:
        return bool(self.rows.size)

    def rising(self) -> CurveSet:
        """The same without dips. Where rows are not padded, a pass over more rows does more work:
        that it took less time was noise, and would make off look dear or a row look free."""
        if not self:
            return self
        return replace(self, seconds=isotonic(self.seconds, np.ones_like(self.seconds)))

    def at(self, context_tokens: float) -> FloatArray:
        """Seconds by measured row count, (R,)."""
        return _blend(self.contexts, self.seconds, context_tokens)

    def between(self, context_tokens: float, rows: IntArray) -> FloatArray:
        """Seconds for any row counts, linear between measured ones."""
        return between(self.rows, self.at(context_tokens), rows)

    def token_s(self) -> float:
        """Seconds that a token of context adds per row, over all rows; 0 with one context."""
        gap = float(self.contexts[-1] - self.contexts[0])
        if gap <= 0.0 or not self:
            return 0.0
        added = self.seconds[-1] - self.seconds[0]
        return max(float((added * self.rows).sum() / (self.rows**2).sum()) / gap, 0.0)

    def each(self, contexts: FloatArray, rows: IntArray) -> FloatArray:
        """Seconds for pairs (context, row count) of equal shape (P,)."""
        at_rows = np.array([between(self.rows, curve, rows) for curve in self.seconds])
        low, high, part = _place(self.contexts, contexts)
        pair = np.arange(rows.size)
        at_low = at_rows.take(low * rows.size + pair)
        result: FloatArray = at_low + part * (at_rows.take(high * rows.size + pair) - at_low)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class GridSet:
    """D(n, d) at several contexts. ``requests`` (N,), ``lengths`` (L,), ``seconds`` (X, N, L)."""

    requests: FloatArray
    lengths: FloatArray
    contexts: FloatArray
    seconds: FloatArray

    @classmethod
    def of(cls, grids: Sequence[DraftCostGrid]) -> GridSet:
        """Completes the grid: 0 at d = 0, cells not measured interpolated along d."""
        ordered = sorted(grids, key=lambda grid: grid.context_tokens)
        requests = sorted({n for grid in ordered for n in grid.requests} or {1})
        lengths = sorted({0, *(d for grid in ordered for d in grid.draft_tokens)})
        seconds = np.array([_completed(grid, requests, lengths) for grid in ordered])
        if not ordered:
            seconds = np.zeros((1, len(requests), len(lengths)))
        contexts = [float(grid.context_tokens) for grid in ordered] or [0.0]
        return cls(
            np.array(requests, dtype=np.float64),
            np.array(lengths, dtype=np.float64),
            np.array(contexts),
            seconds,
        )

    def at(self, context_tokens: float, requests: IntArray, lengths: IntArray) -> FloatArray:
        """Seconds for pairs (n, d) of equal shape (P,); the edge's value outside of the grid."""
        table = _blend(self.contexts, self.seconds, context_tokens)
        n_low, n_high, n_part = _place(self.requests, requests)
        d_low, d_high, d_part = _place(self.lengths, lengths)
        # Flat positions: one take is several times faster than indexing by two arrays.
        low, high = n_low * self.lengths.size, n_high * self.lengths.size
        at_low, at_high = table.take(low + d_low), table.take(high + d_low)
        at_low = at_low + d_part * (table.take(low + d_high) - at_low)
        at_high = at_high + d_part * (table.take(high + d_high) - at_high)
        result: FloatArray = at_low + n_part * (at_high - at_low)
        return result


def between(known: IntArray, seconds: FloatArray, rows: IntArray) -> FloatArray:
    """Linear between measured row counts, flat below the first, the last slope beyond the last."""
    result: FloatArray = np.interp(rows, known, seconds)
    if known.size > 1 and rows.max(initial=0) > known[-1]:
        slope = max((seconds[-1] - seconds[-2]) / (known[-1] - known[-2]), 0.0)
        result = result + np.maximum(rows - known[-1], 0) * slope
    return result


def pooled(seconds: FloatArray) -> FloatArray:
    """Levels out dips that are noise; real ones stay."""
    fit = isotonic(seconds, np.ones_like(seconds))
    return np.where(np.abs(fit - seconds) <= POOLED_DIP_RATIO * fit, fit, seconds)


def padded(known: IntArray, seconds: FloatArray, rows: IntArray) -> FloatArray:
    """T_eff: the least time of any bucket that holds the rows; infinite above the last."""
    effective = np.minimum.accumulate(pooled(seconds)[::-1])[::-1]
    place = np.searchsorted(known, rows)
    return np.where(place < known.size, effective[np.minimum(place, known.size - 1)], np.inf)


def _completed(
    grid: DraftCostGrid, requests: Sequence[int], lengths: Sequence[int]
) -> list[FloatArray]:
    pairs = zip(grid.requests, grid.draft_tokens, strict=True)
    cells = dict(zip(pairs, grid.median_us, strict=True))
    columns = []
    for d in lengths:
        known = [n for n in requests if (n, d) in cells]
        values = [cells[n, d] * _US for n in known]
        columns.append(
            np.interp(requests, known, values) if known else np.full(len(requests), np.nan)
        )
    columns[0] = np.zeros(len(requests))
    measured = [i for i, column in enumerate(columns) if np.isfinite(column).all()]
    rows = np.stack([columns[i] for i in measured], axis=1)
    at = np.array(lengths)[measured]
    return [np.interp(lengths, at, row) for row in rows]


def _place(
    grid: FloatArray, values: IntArray | FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Indices below and above on a grid, and the part of the way between them."""
    place = np.interp(values, grid, np.arange(grid.size))
    low = np.minimum(place.astype(np.int64), max(grid.size - 2, 0))
    return low, np.minimum(low + 1, grid.size - 1), place - low


def _blend(contexts: FloatArray, values: FloatArray, context_tokens: float) -> FloatArray:
    """Linear between the measured contexts, the nearest one outside of them."""
    high = int(contexts.searchsorted(context_tokens))
    if high in (0, contexts.size):
        nearest: FloatArray = values[min(high, contexts.size - 1)]
        return nearest
    low = high - 1
    part = (context_tokens - contexts[low]) / (contexts[high] - contexts[low])
    result: FloatArray = values[low] + part * (values[high] - values[low])
    return result
