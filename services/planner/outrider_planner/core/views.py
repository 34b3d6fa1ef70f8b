"""The planner's state for people: plain dictionaries, ready for JSON.

Knows what is worth showing. Does not know HTTP. Numbers that are not known are None, never 0.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from outrider_planner.core.checks import checks
from outrider_planner.core.explain import Explanation
from outrider_planner.core.isotonic import falling
from outrider_planner.core.planner import Planner
from outrider_planner.core.settings import DeploymentSettings
from outrider_planner.core.shadows import Shadow
from outrider_planner.core.sums import Counts
from outrider_planner.core.worker_state import WorkerState

_NO_DRAFTS = 1e-12


def deployments(planner: Planner, now_s: float) -> dict[str, Any]:
    """All deployments by name."""
    names = sorted({worker.hello.deployment for worker in planner.workers.values()})
    default = planner.settings.default.settings
    return {
        "policy": default.policy,
        "objective": default.objective.value,
        "deployments": [deployment(planner, name, now_s) for name in names],
    }


def deployment(planner: Planner, name: str, now_s: float) -> dict[str, Any]:
    """One deployment; its list of workers is empty where nobody is known by that name."""
    found = {
        incarnation: worker
        for incarnation, worker in planner.workers.items()
        if worker.hello.deployment == name
    }
    return {
        "deployment": name,
        "settings": settings(planner.settings.of(name).settings),
        "workers": [
            _worker(planner, incarnation, found[incarnation], now_s) for incarnation in found
        ],
    }


def settings(chosen: DeploymentSettings) -> dict[str, Any]:
    """A deployment's settings, as PUT takes them."""
    return {**asdict(chosen), "objective": chosen.objective.value}


def explanation(
    planner: Planner, incarnation: str, found: Explanation, now_s: float
) -> dict[str, Any]:
    """Why a worker is planned as it is, beside what it measured lately."""
    worker = planner.workers[incarnation]
    return {
        "deployment": worker.hello.deployment,
        "worker": incarnation,
        "state": worker.state_at(now_s),
        "plan_version": worker.version,
        "plan_age_s": now_s - worker.planned_s,
        "settings_version": planner.basis[incarnation].settled.settings.version,
        **asdict(found),
        "forecast": None if worker.forecast is None else _fields(worker.forecast),
        "checks": _checks(planner, incarnation, worker),
        "guard": None if worker.guard is None else _fields(worker.guard),
        "shadows": [_shadow(item) for item in planner.shadows.of(incarnation)],
    }


def _worker(
    planner: Planner, incarnation: str, worker: WorkerState, now_s: float
) -> dict[str, Any]:
    hello, basis = worker.hello, planner.basis.get(incarnation)
    return {
        "incarnation": incarnation,
        "address": hello.worker_address,
        "model": hello.identity.model,
        "device": hello.identity.device,
        "state": worker.state_at(now_s),
        "has_cost_table": worker.costs.has_table,
        "sources": None if basis is None else _fields(basis.sources),
        "present_requests": worker.requests_at(now_s),
        "rounds": worker.rounds,
        "last_report_age_s": None if worker.last_report_s is None else now_s - worker.last_report_s,
        "plan": _plan(worker, now_s),
        "shadows": [_shadow(item) for item in planner.shadows.of(incarnation)],
        "statistics": [_drafter(worker, traits.name) for traits in hello.drafters],
        "forecast": None if worker.forecast is None else _fields(worker.forecast),
        "guard": None if worker.guard is None else _fields(worker.guard),
        "cost": {
            "context_tokens": worker.costs.context_tokens,
            "request_slope_s": worker.costs.slopes.request_s,
            "row_slope_s": worker.costs.slopes.row_s,
            "residual_clips": worker.costs.clips,
        },
        "rejected": dict(worker.rejected),
        "plan_clamps": worker.clamps,
        "dropped_rounds": worker.dropped_rounds,
    }


def _checks(planner: Planner, incarnation: str, worker: WorkerState) -> list[dict[str, Any]]:
    """Accepted drafts by kind of round, realised beside predicted."""
    basis = planner.basis.get(incarnation)
    drafters = basis.snapshot.drafters if basis is not None else ()
    gain = drafters[0].gain if len(drafters) == 1 else None
    return [_fields(item) for item in checks(worker.evidence.average, gain)]


def _plan(worker: WorkerState, now_s: float) -> dict[str, Any] | None:
    """The plan in force; its tables by drafter, B by carried d."""
    plan = worker.plan
    if plan is None:
        return None
    return {
        "version": plan.version,
        "age_s": now_s - worker.planned_s,
        "policy": plan.policy,
        "objective": plan.objective,
        "reason": plan.reason,
        "requests_ladder": plan.requests_ladder,
        "rate_tokens_per_s": plan.rate_tokens_per_s,
        "drafters": [
            {"drafter": d.drafter, "draft_tokens": d.draft_tokens, "target_rows": d.target_rows}
            for d in plan.drafters
        ],
        "probe": _fields(plan.probe),
    }


def _shadow(item: Shadow) -> dict[str, Any]:
    """What a policy beside the live one would do at the present load."""
    cell = None if item.cell is None else _fields(item.cell)
    return {"policy": item.policy, "cell": cell, "error": item.error}


def _drafter(worker: WorkerState, name: str) -> dict[str, Any]:
    """Counts since the worker's start and estimates, by position and class."""
    counts = worker.totals.get(name)
    classes, estimates = worker.estimates.get(name, ((), None))
    shown: dict[str, Any] = {
        "drafter": name,
        **_counts(counts),
        "calibration": _calibration(worker, name),
        "classes": [],
    }
    if estimates is None:
        return shown
    survival = falling(estimates.mean_survival, np.maximum(estimates.length, _NO_DRAFTS))
    shown["classes"] = [
        {
            "request_class": label,
            "share": float(estimates.class_share[c]),
            "survival": survival[c].tolist(),
            "length_survival": estimates.length[c].tolist(),
            "trust": worker.evidence.trust((name, label)),
            "drift_events": _drift_events(worker, name, label),
        }
        for c, label in enumerate(classes)
    ]
    return shown


def _calibration(worker: WorkerState, name: str) -> dict[str, Any] | None:
    """Expected calibration errors of the raw scores and of the survivals made from them."""
    found = worker.evidence.calibrations.get(name)
    traits = next(item for item in worker.hello.drafters if item.name == name)
    if found is None:
        return None
    return {
        "scores_useful": found.useful,
        "error_before": found.error_before(traits),
        "error_after": found.error_after(),
    }


def _drift_events(worker: WorkerState, drafter: str, label: str) -> int:
    test = worker.evidence.drifts.get((drafter, label))
    return 0 if test is None else test.events


def _counts(counts: Counts | None) -> dict[str, list[int]]:
    """By position, without the unused tail."""
    if counts is None:
        return {"asked": [], "drafted": [], "verified": [], "accepted": []}
    columns = {
        "asked": counts.asked,
        "drafted": counts.drafted.sum(-1),
        "verified": counts.verified.sum(-1),
        "accepted": counts.accepted.sum(-1),
    }
    used = int((counts.asked > 0).sum())
    return {name: [int(value) for value in column[:used]] for name, column in columns.items()}


def _fields(value: object) -> dict[str, Any]:
    """A flat slotted dataclass as a dictionary."""
    return {name: getattr(value, name) for name in getattr(value, "__slots__", ())}
