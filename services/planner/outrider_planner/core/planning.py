"""From a worker's state and its deployment's settings to its next plan, and what it rests on.

Knows what a decision is made from, and what is added to it. Does not know streams or stores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from outrider_planner.core.assemble import PlanTerms, assemble, next_score_maps, worth_sending
from outrider_planner.core.cost import CostModel, step_of
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.explore import explored
from outrider_planner.core.policies import Decision, Policy, Snapshot
from outrider_planner.core.settings_book import Settled
from outrider_planner.core.sources import Sources
from outrider_planner.core.types import Objective, Plan, ProbeDirective, WorkerLimits
from outrider_planner.core.worker_state import WorkerState

_LEAST_INTERVAL_MS, _MOST_INTERVAL_MS = 100, 1000
# Plain rounds while the price of off is a guess; a few settle it.
_DOUBT_SHARE = 1.0 / 64.0


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """All that the latest decision of a worker was made from; enough to make it again."""

    snapshot: Snapshot
    cost: CostModel | None
    limits: WorkerLimits
    settled: Settled
    sources: Sources
    # More than one where the statistics are those of workers that are planned together.
    workers: int = 1

    @property
    def objective(self) -> Objective:
        """Of the deployment's settings."""
        return self.settled.settings.objective

    def step(self, requests: int | None = None) -> int:
        """The ladder step that serves n, or the present load (1 when idle)."""
        n = max(self.snapshot.present_requests, 1) if requests is None else requests
        return int(step_of(self.snapshot.ladder, np.array([n]))[0])

    def told(self, reason: str) -> str:
        """A decision's sentence with what it rests on."""
        shared = f"one plan for {self.workers} workers that are alike" if self.workers > 1 else ""
        return "; ".join(filter(None, (reason, self.sources.sentence(), shared)))

    def apart(self) -> Basis:
        """The same for another thread, with a copy of the only part that goes on changing."""
        rounds = self.snapshot.rounds
        if rounds is None:
            return self
        return replace(self, snapshot=replace(self.snapshot, rounds=rounds.copy()))

    def decide(self, policy: Policy | None = None, previous: Decision | None = None) -> Decision:
        """The decision of the settings' policy, or another's, which has its own ``previous``.

        Raises:
            Exception: whatever a policy from outside raises.
        """
        if policy is None:
            policy, snapshot = self.settled.policy, self.snapshot
        else:
            snapshot = replace(self.snapshot, previous=previous)
        return policy.decide(snapshot, self.cost, self.limits, self.objective)


def plan_terms(config: PlannerConfig, settled: Settled, workers: int, unsettled: bool) -> PlanTerms:
    """Reports come more rarely the more workers there are: about a thousand a second.

    ``unsettled``: acceptance has just changed, so that reports should come early.
    """
    wanted_ms = _LEAST_INTERVAL_MS if unsettled else config.report_interval_ms
    return PlanTerms(
        policy=settled.policy.name,
        objective=settled.settings.objective.value,
        report_interval_ms=min(max(wanted_ms, workers, _LEAST_INTERVAL_MS), _MOST_INTERVAL_MS),
        validity_ms=config.validity_ms,
        grace_ms=config.grace_ms,
        guard=settled.settings.guard,
        plain_wanted_after_s=config.plain_wanted_after_s,
        plain_share=config.plain_share,
    )


def next_plan(worker: WorkerState, basis: Basis, terms: PlanTerms, now_s: float) -> Plan | None:
    """A plan to push, or None where nothing worth sending changed; the worker keeps both.

    Raises:
        NotFiniteError: the decision holds NaN or infinite numbers.
        Exception: whatever a policy raises. The worker's last plan stands in either case.
    """
    decision = basis.decide()
    decision = replace(
        decision,
        probe=_with_plain(worker, decision.probe, terms, now_s),
        reason=basis.told(decision.reason),
    )
    maps = next_score_maps(worker.score_maps, worker.score_values())
    shown = _explored(worker, basis, decision)
    plan = assemble(shown, worker.ladder, worker.hello.limits, maps, terms)
    worker.decision, worker.score_maps = decision, maps
    if not worth_sending(worker.plan, plan):
        return None
    worker.version += 1
    worker.plan, worker.planned_s = replace(plan, version=worker.version), now_s
    return worker.plan


def _explored(worker: WorkerState, basis: Basis, decision: Decision) -> Decision:
    """The decision with a look further, for policies that look and are bound by no latency."""
    looks = getattr(basis.settled.policy, "explores", False)
    if not looks or basis.cost is None or basis.objective is not Objective.THROUGHPUT:
        return decision
    asked = worker.evidence.asked()
    cap = basis.snapshot.bounds.max_draft_tokens
    return explored(decision, basis.cost, basis.step(), worker.rounds, asked, cap)


def _with_plain(
    worker: WorkerState, probe: ProbeDirective, terms: PlanTerms, now_s: float
) -> ProbeDirective:
    """Asks for plain rounds where none happened for a while, for the guard needs a scale, and
    where the price of off is a guess."""
    if worker.costs.doubts_off(worker.present_requests):
        return replace(probe, plain_share=_DOUBT_SHARE)
    wanted = now_s - worker.last_plain_s > terms.plain_wanted_after_s
    return replace(probe, plain_share=terms.plain_share if wanted else 0.0)
