"""What the planner would plan: from rounds that were measured and a survival curve to a plan.

The planner's own core, in this process, with statistics as if the drafter had been watched for
long. Knows both sides' values; there is no wire between them here.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

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
from outrider_worker.engine.plans import DrafterBudget, Plan, ScoreMap
from outrider_worker.engine.records import RoundRecord
from outrider_worker.speculate.scores import score_bin

_WATCHED_DRAFTS = 10_000
_BINS = 16


def two_stage_plan(
    drafter: str,
    survival: Sequence[float],
    records: Sequence[RoundRecord],
    limits: WorkerLimits,
    pads_rows: bool,
) -> Plan:
    """The plan for all n. records: rounds of different sizes, from which T(b) and D(n, d) come.

    Raises RuntimeError where the planner finds none.
    """
    planner = Planner(PlannerConfig())
    hello = _hello(drafter, survival, records, limits, pads_rows)
    planner.on_hello(hello, 1, 0.0)
    worker = planner.workers[hello.worker_incarnation]
    worker.evidence.fast[(drafter, "")] = _counts(survival)
    worker.present_requests = limits.max_running_requests
    worker.dirty = True
    planner.replan(1.0)
    if worker.plan is None:
        raise RuntimeError("the planner made no plan")
    plan = worker.plan
    return Plan(
        version=1,
        requests_ladder=plan.requests_ladder,
        budgets={
            item.drafter: DrafterBudget(item.draft_tokens, item.target_rows)
            for item in plan.drafters
        },
        score_maps={
            (item.drafter, item.request_class): ScoreMap(item.version, item.survival)
            for item in plan.score_maps
        },
        validity_s=1e9,
        policy=plan.policy,
        reason=plan.reason,
    )


def _hello(
    drafter: str,
    survival: Sequence[float],
    records: Sequence[RoundRecord],
    limits: WorkerLimits,
    pads_rows: bool,
) -> Hello:
    target: dict[int, list[float]] = defaultdict(list)
    drafting: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records:
        target[record.bucket_rows].append(record.times.target_s)
        if record.next_draft_tokens:
            drafting[record.requests, record.next_draft_tokens].append(record.times.draft_s)
    context = statistics.median(r.request_context_tokens // r.requests for r in records)
    rows, pairs = tuple(sorted(target)), sorted(drafting)
    curve = CostCurve(round(context), rows, tuple(_micros(target[b]) for b in rows))
    grid = DraftCostGrid(
        round(context),
        tuple(n for n, _ in pairs),
        tuple(d for _, d in pairs),
        tuple(_micros(drafting[pair]) for pair in pairs),
    )
    return Hello(
        deployment="check",
        worker_incarnation="check",
        identity=EngineIdentity(model="check"),
        limits=limits,
        row_buckets=rows,
        pads_rows=pads_rows,
        drafters=(DrafterTraits(drafter, max_draft_tokens=len(survival), score_bins=_BINS),),
        cost_table=CostTable((curve,), (DrafterCosts(drafter, draft=(grid,)),)),
    )


def _micros(seconds: Sequence[float]) -> int:
    return max(1, round(statistics.median(seconds) * 1e6))


def _counts(survival: Sequence[float]) -> Counts:
    """As if every draft had been verified, each position in the bin the drafter gives it."""
    counts = Counts.zeros(MAX_DRAFT_TOKENS)
    for place, share in enumerate(survival):
        seen = (_WATCHED_DRAFTS, _WATCHED_DRAFTS, round(share * _WATCHED_DRAFTS))
        counts.grid[:, place, score_bin(share)] = seen
        counts.asked[place] = _WATCHED_DRAFTS
    return counts
