"""Fits acceptance curves and the fixed round time to the published experiment.

    python -m benchmarks.planner_published [--steps 60]

For every fixed time a random search that narrows finds each workload's curve; the best fixed time
is the one with the least sum of squared residuals. The result is written into
`outrider_planner.sim.published` by hand; this prints it with its residuals.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from outrider_planner.sim.published import (
    LONG,
    SHORT,
    SHORT_GAIN,
    WORKLOADS,
    Fit,
    Published,
    expected,
    workload,
)

FIXED_MS = (30, 45, 60, 80, 100)
START = Fit(level=1.5, slope=-0.2, request=1.0)
WIDTHS = (1.2, 0.35, 0.8)


@dataclass(frozen=True)
class Found:
    fit: Fit
    shown: Published
    loss: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed-ms", type=int, nargs="*", default=FIXED_MS)
    options = parser.parse_args()
    for fixed_ms in options.fixed_ms:
        found = [search(wanted, fixed_ms, options.steps) for wanted in WORKLOADS]
        print(f"fixed time {fixed_ms} ms: loss {sum(item.loss for item in found):.4f}")
        for wanted, item in zip(WORKLOADS, found, strict=True):
            short = expected(workload(item.fit, SHORT, fixed_ms)).throughput
            print(f"  {wanted.name}: {item.fit}")
            print(f"    wanted {wanted}\n    shown  {item.shown}, at K = {SHORT} {short:.3f}")


def search(wanted: Published, fixed_ms: int, steps: int) -> Found:
    """Random steps around the best so far, ever smaller; the seed is fixed."""
    rng = np.random.default_rng(0)
    best = _found(START, wanted, fixed_ms)
    for step in range(steps):
        width = np.array(WIDTHS) * 0.1 ** (1.5 * step / steps)
        level, slope, request = width * rng.standard_normal(3)
        fit = best.fit
        moved = Fit(fit.level + level, fit.slope + slope, max(fit.request + request, 0.0))
        tried = _found(moved, wanted, fixed_ms)
        best = tried if tried.loss < best.loss else best
    return best


def _found(fit: Fit, wanted: Published, fixed_ms: int) -> Found:
    shown = expected(workload(fit, LONG, fixed_ms))
    residuals = [
        np.log(shown.rows_divisor / wanted.rows_divisor),
        3.0 * np.log(shown.throughput / wanted.throughput),
        3.0 * (shown.acceptance - wanted.acceptance),
    ]
    if wanted is WORKLOADS[0]:
        short = expected(workload(fit, SHORT, fixed_ms)).throughput
        residuals.append(np.log(short / SHORT_GAIN))
    return Found(fit, shown, float(np.square(residuals).sum()))


if __name__ == "__main__":
    main()
