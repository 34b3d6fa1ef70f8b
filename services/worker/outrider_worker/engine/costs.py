"""The cost table: measured seconds of the target and of drafting. Pure.

Filled by `profile`, sent to the planner in the hello, read by the guard. Symbols as in planner.md:
T(b) target over b rows, E(b) feeding verified rows to the drafter, D(n, d) drafting.
"""

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Replays of one shape: median and interquartile range in seconds, and how many there were."""

    median_s: float
    spread_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds by row count at one context length; rows ascending."""

    context_tokens: int
    rows: tuple[int, ...]
    timings: tuple[Timing, ...]

    def seconds(self, rows: int) -> float:
        """Linear between measured row counts, in proportion beyond the last."""
        medians = [timing.median_s for timing in self.timings]
        return interpolate(rows, self.rows, medians)


@dataclass(frozen=True, slots=True)
class DraftCost:
    """One measured point of D(n, d)."""

    requests: int
    draft_tokens: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class DrafterCosts:
    """One drafter's measured costs by context length; `feed` is empty for host drafters."""

    drafter: str
    draft: tuple[tuple[int, tuple[DraftCost, ...]], ...]
    feed: tuple[CostCurve, ...] = ()


@dataclass(frozen=True, slots=True)
class CostTable:
    """T at two or more context lengths (ascending), and what each drafter costs."""

    target: tuple[CostCurve, ...]
    drafters: tuple[DrafterCosts, ...] = ()

    @property
    def relative_spread(self) -> float:
        """Median over all shapes of T of interquartile range over median: how busy the machine
        was while it was measured."""
        return statistics.median(
            timing.spread_s / timing.median_s for curve in self.target for timing in curve.timings
        )

    def target_s(self, rows: int, context_tokens: float) -> float:
        """T(rows) at the mean context length of the rows, extrapolated beyond what was measured."""
        contexts = [curve.context_tokens for curve in self.target]
        seconds = [curve.seconds(rows) for curve in self.target]
        return interpolate(context_tokens, contexts, seconds)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear between points, flat before the first, continuing the last slope beyond the end."""
    if len(xs) == 1 or x <= xs[0]:
        return ys[0]
    right = min(bisect_left(xs, x), len(xs) - 1)
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
