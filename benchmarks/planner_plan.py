"""Plan computation: statistics to a finished plan for all n, for K = 16 and 64 row buckets.

    python -m benchmarks.planner_plan [--runs 200]

One plan holds d and B for every step of the ladder up to 256 requests. Measured is what a worker's
report costs the planner after it was counted: estimates, costs, both stages of the search, score
maps, bounds. Every run has news, so that nothing can be reused. Two drafters: one that always
drafts what is asked, and a sparse one, where every term is an expectation over the pool; and the
sparse one again on a CPU worker with its default limits, where every row count is a candidate.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.measure import Series, write_result
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.planner import Planner
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import (
    MAX_DRAFT_TOKENS,
    CostCurve,
    CostTable,
    DraftCostGrid,
    DrafterCosts,
    DrafterTraits,
    EngineIdentity,
    Hello,
    WorkerLimits,
)

BINS = 16
TARGET_MS = 5.0


@dataclass(frozen=True)
class Case:
    """A worker's limits and its drafter's kind."""

    name: str
    sparse: bool
    draft_tokens: int = 16
    requests: int = 256
    rows: tuple[int, ...] = tuple(range(8, 513, 8))
    pads_rows: bool = True


CASES = (
    Case("64 buckets, dense", sparse=False),
    Case("64 buckets, sparse", sparse=True),
    Case(
        "CPU defaults, sparse",
        True,
        8,
        32,
        (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
        False,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    rows = []
    print("wall time, and the thread's own CPU time, which says more on a busy machine")
    for case in CASES:
        plan_ms, cpu_ms = measured(case, options.runs)
        quartiles = np.percentile(plan_ms.values, [25, 75])
        print(
            f"{case.name}: {plan_ms} ms per plan, quartiles {quartiles[0]:.2f}–{quartiles[1]:.2f}, "
            f"CPU {cpu_ms} ms, target < {TARGET_MS:g} ms"
        )
        rows.append(
            {
                "case": case.name,
                "plan_ms": plan_ms.summary(),
                "cpu_ms": cpu_ms.summary(),
                "quartiles_ms": [round(float(value), 3) for value in quartiles],
                "target_ms": TARGET_MS,
                "met": plan_ms.median < TARGET_MS,
            }
        )
    write_result("planner_plan", vars(options), rows)


def measured(case: Case, runs: int) -> tuple[Series, Series]:
    """Milliseconds of each run on the wall and on the CPU, the first ones left out."""
    planner, rng = Planner(PlannerConfig()), np.random.default_rng(0)
    plan_ms, cpu_ms = Series(), Series()
    planner.on_hello(_hello(case), 1, 0.0)
    worker = planner.workers["bench"]
    warm_up = 10
    for run in range(runs + warm_up):
        worker.evidence.fast = {("drafter", "greedy"): _counts(case, rng)}
        worker.present_requests = int(rng.integers(1, case.requests))
        worker.dirty = True
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        planner.replan(float(run))
        if run >= warm_up:
            plan_ms.add((time.perf_counter() - began_s) * 1e3)
            cpu_ms.add((time.thread_time() - cpu_s) * 1e3)
    return plan_ms, cpu_ms


def _counts(case: Case, rng: np.random.Generator) -> Counts:
    counts = Counts.zeros(MAX_DRAFT_TOKENS)
    shape = (case.draft_tokens, BINS)
    drafted = rng.integers(20, 80, shape)
    survival = np.linspace(0.1, 0.95, BINS) * 0.9 ** np.arange(case.draft_tokens)[:, None]
    verified = rng.binomial(drafted, 0.7)
    counts.grid[:, : case.draft_tokens] = (drafted, verified, rng.binomial(verified, survival))
    counts.asked[: case.draft_tokens] = drafted.sum(axis=1).max() * 1.5
    return counts


def _hello(case: Case) -> Hello:
    curves = tuple(
        CostCurve(context, case.rows, tuple(8_000 + slope * rows for rows in case.rows))
        for context, slope in ((512, 20), (4096, 25))
    )
    pairs = [(n, d) for n in (1, 8, 64, 256) for d in range(1, case.draft_tokens + 1)]
    grid = DraftCostGrid(
        512,
        tuple(n for n, _ in pairs),
        tuple(d for _, d in pairs),
        tuple(100 * d + n for n, d in pairs),
    )
    traits = DrafterTraits(
        "drafter", max_draft_tokens=case.draft_tokens, sparse=case.sparse, score_bins=BINS
    )
    return Hello(
        deployment="bench",
        worker_incarnation="bench",
        identity=EngineIdentity(model="bench"),
        limits=WorkerLimits(case.requests, case.rows[-1], case.draft_tokens),
        row_buckets=case.rows,
        pads_rows=case.pads_rows,
        drafters=(traits,),
        cost_table=CostTable(curves, (DrafterCosts("drafter", draft=(grid,)),)),
    )


if __name__ == "__main__":
    main()
