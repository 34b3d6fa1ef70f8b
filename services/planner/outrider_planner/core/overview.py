"""What a live page shows: every deployment at a glance, and one worker's plan as a map over n × d.

Plain dictionaries, ready for JSON; short, since they are asked for every few seconds and a planner
may know a thousand workers. Does not know HTTP. Numbers that are not known are None, never 0.
"""

from __future__ import annotations

from typing import Any

from outrider_planner.core.cells import forecast_ratio, ratios_by_length
from outrider_planner.core.planner import Planner
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies.base import DrafterStatistics
from outrider_planner.core.types import DrafterPlan
from outrider_planner.core.weighted import verified_of, weighted_mean
from outrider_planner.core.worker_state import WorkerState


def overview(planner: Planner, now_s: float) -> dict[str, Any]:
    """All deployments by name, with their policies and workers."""
    workers: dict[str, list[dict[str, Any]]] = {}
    for incarnation, worker in planner.workers.items():
        shown = _worker(worker, planner.basis.get(incarnation), now_s)
        workers.setdefault(worker.hello.deployment, []).append(shown)
    return {"deployments": [_deployment(planner, name, workers[name]) for name in sorted(workers)]}


def _deployment(planner: Planner, name: str, workers: list[dict[str, Any]]) -> dict[str, Any]:
    settings = planner.settings.of(name).settings
    return {
        "deployment": name,
        "policy": settings.policy,
        "objective": settings.objective.value,
        "settings_version": settings.version,
        "workers": workers,
    }


def _worker(worker: WorkerState, basis: Basis | None, now_s: float) -> dict[str, Any]:
    hello, guard, plan = worker.hello, worker.guard, worker.plan
    drafters = [
        _drafter(worker, basis, item, worker.step_at(now_s))
        for item in (() if plan is None else plan.drafters)
    ]
    return {
        "worker": hello.worker_incarnation,
        "address": hello.worker_address,
        "model": hello.identity.model,
        "state": worker.state_at(now_s),
        "requests": worker.requests_at(now_s),
        "plan_version": None if plan is None else plan.version,
        "plan_age_s": None if plan is None else now_s - worker.planned_s,
        "rate_vs_off_ratio": _together(drafters),
        "drafters": drafters,
        "guard_tripped": None if guard is None else guard.tripped,
        "guard_trips": None if guard is None else guard.trips,
        "drift_events": sum(test.events for test in worker.evidence.drifts.values()),
    }


def _drafter(
    worker: WorkerState, basis: Basis | None, plan: DrafterPlan, step: int
) -> dict[str, Any]:
    """What is planned with a drafter at one step of the ladder, and what that should bring."""
    draft_tokens, ratio = plan.draft_tokens[step], None
    if basis is not None and basis.cost is not None and worker.decision is not None:
        ratio = forecast_ratio(worker.decision, basis.cost, plan.drafter, step)
    return {
        "drafter": plan.drafter,
        "draft_tokens": draft_tokens,
        "target_rows": plan.target_rows[step][draft_tokens],
        "rate_vs_off_ratio": 1.0 if draft_tokens == 0 else ratio,
        "verified": verified_of(worker).get(plan.drafter, 0.0),
    }


def _together(drafters: list[dict[str, Any]]) -> float | None:
    """What all drafters should bring, those that nothing was verified of left out."""
    if drafters and not any(item["draft_tokens"] for item in drafters):
        return 1.0
    ratios = {item["drafter"]: item["rate_vs_off_ratio"] for item in drafters}
    return weighted_mean(ratios, {item["drafter"]: item["verified"] for item in drafters})


def rate_map(basis: Basis) -> dict[str, list[list[float | None]]]:
    """By drafter the best rate of every (ladder step, d) over that without drafts.

    None where no draft of that length can be verified; nothing where no costs were measured.
    """
    found = {} if basis.cost is None else _ratios(basis, basis.snapshot.drafters)
    return {
        name: [[value or None for value in step] for step in ratios]
        for name, ratios in found.items()
    }


def _ratios(basis: Basis, drafters: tuple[DrafterStatistics, ...]) -> dict[str, list[list[float]]]:
    assert basis.cost is not None
    return {item.traits.name: ratios_by_length(item, basis.cost).tolist() for item in drafters}


def plan_map(
    worker: WorkerState, rates: dict[str, list[list[float | None]]], now_s: float
) -> dict[str, Any]:
    """A worker's plan over its ladder, by drafter, beside the rate of every (n, d)."""
    plan = worker.plan
    return {
        "worker": worker.hello.worker_incarnation,
        "state": worker.state_at(now_s),
        "requests": worker.requests_at(now_s),
        "requests_ladder": worker.ladder,
        "present_step": worker.step_at(now_s),
        "plan_version": None if plan is None else plan.version,
        "plan_age_s": None if plan is None else now_s - worker.planned_s,
        "drafters": [
            {
                "drafter": item.drafter,
                "draft_tokens": item.draft_tokens,
                "rate_vs_off_ratio": rates.get(item.drafter, []),
            }
            for item in (() if plan is None else plan.drafters)
        ],
    }
