"""The planner as a discrete-event core: inputs come with their time, effects are returned.

Knows workers, deployments, when plans are due and what is flushed to the store. Reads no clock,
does no I/O, draws no chance: the same inputs give the same effects, so a log can be replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from outrider_planner.core.assemble import (
    NotFiniteError,
    PlanTerms,
    assemble,
    next_score_maps,
    worth_sending,
)
from outrider_planner.core.events import (
    Effect,
    FlushDeltas,
    ForgetScope,
    ForgetWorker,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReadScope,
    ReportOutcome,
)
from outrider_planner.core.hellos import CapacityError, check_hello, statistics_digest
from outrider_planner.core.intake import take_in
from outrider_planner.core.shares import take_pending
from outrider_planner.core.sums import FLEET_CLASS, from_fields, weigh
from outrider_planner.core.types import Hello, Plan, ProbeDirective, StepReports
from outrider_planner.core.worker_state import SlowCounts, WorkerState, pool_bands

_LEAST_INTERVAL_MS, _MOST_INTERVAL_MS = 100, 1000


class Planner:
    """All workers of one planner process. Every method takes the present monotonic time."""

    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.workers: dict[str, WorkerState] = {}
        self._sums: dict[str, SlowCounts] = {}
        self._classes: dict[str, set[str]] = {}
        self._last_flush_s = float("-inf")
        self._last_read_s = float("-inf")

    # Inputs -----------------------------------------------------------------------------------

    def on_hello(self, hello: Hello, stream: int, now_s: float) -> list[Effect]:
        """A worker opened a stream; it takes over from an older stream of the same incarnation.

        Its first plan is due at once.

        Raises:
            HelloRefusedError: malformed, another protocol version, or over capacity.
        """
        check_hello(hello)
        known = self.workers.get(hello.worker_incarnation)
        effects: list[Effect] = []
        if known is not None and known.hello == hello:
            known.stream, known.left_s, known.dirty = stream, None, True
            known.plan, known.next_plan_s = None, now_s
        else:
            self._admit(hello)
            # What is pending belongs to the scopes of the older hello.
            effects += self.flush() if known else []
            worker = known.succeeded_by(hello, stream, now_s) if known else None
            self.workers[hello.worker_incarnation] = worker or WorkerState(hello, stream, now_s)
        return [*effects, *(ReadScope(s) for s in scopes(hello) if s not in self._sums)]

    def on_reports(
        self, incarnation: str, stream: int, report: StepReports, now_s: float
    ) -> ReportOutcome:
        """Counts what is believable of a report; a plan falls due if it brought news."""
        worker = self.workers.get(incarnation)
        if worker is None or worker.stream != stream:
            return ReportOutcome(Counter({"unknown_stream": 1}))
        classes = self._classes.setdefault(worker.hello.deployment, set())
        return take_in(worker, report, now_s, classes, self.config)

    def on_gone(self, incarnation: str, stream: int, now_s: float) -> None:
        """A stream ended; a younger one of the same worker is not touched."""
        worker = self.workers.get(incarnation)
        if worker is not None and worker.stream == stream:
            worker.left_s = now_s

    def on_store_snapshot(
        self, scope: str, buckets_newest_first: Sequence[Mapping[str, int]]
    ) -> None:
        """What the store holds of a scope; workers that started without it are planned anew."""
        first = scope not in self._sums
        self._sums[scope] = pool_bands(from_fields(weigh(buckets_newest_first)))
        for worker in self.workers.values():
            worker.dirty = worker.dirty or (first and scope in scopes(worker.hello))

    def on_tick(self, now_s: float) -> list[Effect]:
        """Timed work: flushes, reads, and forgetting workers that left."""
        effects = self._forget(now_s)
        if now_s - self._last_flush_s >= self.config.flush_interval_s:
            self._last_flush_s = now_s
            effects += self.flush()
        if now_s - self._last_read_s >= self.config.read_interval_s:
            self._last_read_s = now_s
            effects += [ReadScope(scope) for scope in sorted(self._used_scopes())]
        return effects

    # Outputs ----------------------------------------------------------------------------------

    def next_due(self) -> tuple[float, str] | None:
        """When the next plan is due and whose it is; None while nobody has news."""
        waiting = [
            (worker.next_plan_s, incarnation)
            for incarnation, worker in self.workers.items()
            if worker.dirty and worker.connected
        ]
        return min(waiting, default=None)

    def plan(self, incarnation: str, now_s: float) -> list[Effect]:
        """Plans for one worker; only what differs from its last plan is pushed.

        A plan that cannot be found is tried again a little later, and touches no other worker.
        """
        worker = self.workers[incarnation]
        try:
            plan = self._plan(worker, now_s)
        except Exception as error:  # a policy from outside may raise anything
            reason = "not_finite" if isinstance(error, NotFiniteError) else "failed"
            worker.rejected[reason] += 1
            worker.next_plan_s = now_s + self.config.plan_retry_s
            return [HoldPlan(incarnation, reason, error)]
        worker.dirty = False
        return [] if plan is None else [PushPlan(incarnation, worker.stream, plan)]

    def planned(self, incarnation: str, now_s: float, took_s: float) -> None:
        """Planning took this long: the worker waits until all others had as much, twice over.

        So planning takes at most its share of the event loop, however many workers there are.
        """
        worker = self.workers[incarnation]
        connected = sum(other.connected for other in self.workers.values())
        wait_s = took_s * connected / self.config.planning_share
        worker.next_plan_s = max(worker.next_plan_s, now_s + wait_s)

    def replan(self, now_s: float) -> list[Effect]:
        """Plans for every worker that is due now."""
        effects: list[Effect] = []
        while (due := self.next_due()) is not None and due[0] <= now_s:
            effects += self.plan(due[1], now_s)
        return effects

    def flush(self) -> list[Effect]:
        """Sums gathered since the last flush, for the deployment's scope and the fleet's."""
        by_scope: dict[str, list[WorkerState]] = {}
        for worker in self.workers.values():
            by_scope.setdefault(scopes(worker.hello)[0], []).append(worker)
        effects: list[Effect] = []
        for scope, workers in sorted(by_scope.items()):
            own, fleet = take_pending(workers)
            if own:
                effects.append(FlushDeltas(scope, own))
                effects.append(FlushDeltas(scopes(workers[0].hello)[1], fleet))
        return effects

    # Inside -----------------------------------------------------------------------------------

    def _admit(self, hello: Hello) -> None:
        present = {worker.hello.deployment for worker in self.workers.values()}
        if hello.deployment not in present and len(present) >= self.config.max_deployments:
            raise CapacityError(f"already serving {len(present)} deployments")
        if hello.worker_incarnation not in self.workers and (
            len(self.workers) >= self.config.max_workers
        ):
            raise CapacityError(f"already serving {len(self.workers)} workers")

    def _plan(self, worker: WorkerState, now_s: float) -> Plan | None:
        """A plan to push, or None where nothing worth sending changed.

        Raises:
            NotFiniteError: the decision holds NaN or infinite numbers.
            Exception: whatever a policy raises.
        """
        own, fleet = (self._sums.get(scope, {}) for scope in scopes(worker.hello))
        worker.cost_model = worker.costs.model()
        snapshot = worker.snapshot(own, fleet)
        decision = self.config.policy.decide(
            snapshot, worker.cost_model, worker.hello.limits, self.config.objective
        )
        decision = replace(decision, probe=self._with_plain(worker, decision.probe, now_s))
        maps = next_score_maps(worker.score_maps, worker.score_values())
        plan = assemble(decision, worker.ladder, worker.hello.limits, maps, self._terms())
        worker.decision, worker.score_maps = decision, maps
        if not worth_sending(worker.plan, plan):
            return None
        worker.version += 1
        worker.plan, worker.planned_s = replace(plan, version=worker.version), now_s
        return worker.plan

    def _with_plain(
        self, worker: WorkerState, probe: ProbeDirective, now_s: float
    ) -> ProbeDirective:
        """Asks for plain rounds only when none happened for a while: the guard needs a scale."""
        wanted = now_s - worker.last_plain_s > self.config.plain_wanted_after_s
        return replace(probe, plain_share=self.config.plain_share if wanted else 0.0)

    def _terms(self) -> PlanTerms:
        """Reports come more rarely the more workers there are: about a thousand a second."""
        config = self.config
        interval_ms = max(config.report_interval_ms, len(self.workers), _LEAST_INTERVAL_MS)
        return PlanTerms(
            policy=config.policy.name,
            objective=config.objective.value,
            report_interval_ms=min(interval_ms, _MOST_INTERVAL_MS),
            validity_ms=config.validity_ms,
            grace_ms=config.grace_ms,
            guard=config.guard,
        )

    def _used_scopes(self) -> set[str]:
        return {scope for worker in self.workers.values() for scope in scopes(worker.hello)}

    def _forget(self, now_s: float) -> list[Effect]:
        """Drops workers that left long ago, once their last sums were flushed."""
        effects: list[Effect] = []
        for incarnation, worker in list(self.workers.items()):
            gone = worker.left_s is not None and now_s - worker.left_s > self.config.retention_s
            if gone and not worker.pending:
                del self.workers[incarnation]
                effects.append(ForgetWorker(incarnation))
        present = {worker.hello.deployment for worker in self.workers.values()}
        self._classes = {name: c for name, c in self._classes.items() if name in present}
        for scope in self._sums.keys() - self._used_scopes():
            del self._sums[scope]
            effects.append(ForgetScope(scope))
        return effects


def scopes(hello: Hello) -> tuple[str, str]:
    """The store's scopes for a worker: its deployment's, and the fleet's for its target."""
    digest = statistics_digest(hello.identity)
    return f"{hello.deployment}:{digest}", f"{FLEET_CLASS}:{digest}"
