"""The planner as a discrete-event core: inputs come with their time, effects are returned.

Knows workers, deployments, when plans are due and what is flushed to the store. Reads no clock,
does no I/O, draws no chance: the same inputs give the same effects, so a log can be replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from outrider_planner.core.assemble import (
    NotFiniteError,
    PlanTerms,
    assemble,
    next_score_maps,
    worth_sending,
)
from outrider_planner.core.bounds import (
    MOST_CREDIT_S,
    BoundedReport,
    ReportContext,
    ReportRejectedError,
    bound_report,
    class_label,
)
from outrider_planner.core.events import (
    Effect,
    FlushDeltas,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReadScope,
    ReportOutcome,
)
from outrider_planner.core.hellos import CapacityError, check_hello, statistics_digest
from outrider_planner.core.shares import take_pending
from outrider_planner.core.sums import FLEET_CLASS, from_fields, weigh
from outrider_planner.core.types import (
    GuardState,
    Hello,
    Plan,
    ProbeDirective,
    StepReports,
)
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

        Raises:
            HelloRefusedError: malformed, another protocol version, or over capacity.
        """
        check_hello(hello)
        known = self.workers.get(hello.worker_incarnation)
        if known is not None and known.hello == hello:
            known.stream, known.left_s, known.dirty = stream, None, True
            known.plan = None
        else:
            self._admit(hello)
            self.workers[hello.worker_incarnation] = WorkerState(hello, stream, now_s)
        reads = [ReadScope(scope) for scope in scopes(hello) if scope not in self._sums]
        return [*reads, *self.replan(now_s)]

    def on_reports(
        self, incarnation: str, stream: int, report: StepReports, now_s: float
    ) -> ReportOutcome:
        """Counts what is believable of a report; plans follow with the next ``replan``.

        What is not believable changes nothing: unknown is not zero, and the last plan holds.
        """
        worker = self.workers.get(incarnation)
        if worker is None or worker.stream != stream:
            return ReportOutcome(Counter({"unknown_stream": 1}))
        try:
            bounded = self._bounded(worker, report, now_s)
        except ReportRejectedError as error:
            worker.rejected[error.reason] += 1
            return ReportOutcome(Counter({error.reason: 1}))
        worker.last_sequence, worker.last_report_s = report.sequence, now_s
        rejected = Counter(bounded.rejected)
        trips = self._take_guard(worker, report.guard, rejected)
        clamps = max(report.clamps - worker.clamps, 0)
        dropped = max(report.dropped_rounds - worker.dropped_rounds, 0)
        worker.clamps += clamps
        worker.dropped_rounds += dropped
        worker.rejected.update(rejected)
        worker.absorb(bounded, now_s)
        return ReportOutcome(rejected, dropped, clamps, trips)

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
        """Timed work: flushes, reads, forgetting workers that left, and due plans."""
        effects: list[Effect] = []
        self._forget(now_s)
        if now_s - self._last_flush_s >= self.config.flush_interval_s:
            self._last_flush_s = now_s
            effects += self.flush()
        if now_s - self._last_read_s >= self.config.read_interval_s:
            self._last_read_s = now_s
            used = {scope for worker in self.workers.values() for scope in scopes(worker.hello)}
            effects += [ReadScope(scope) for scope in sorted(used)]
        return effects + self.replan(now_s)

    # Outputs ----------------------------------------------------------------------------------

    def replan(self, now_s: float) -> list[Effect]:
        """Plans for workers with news; only those that differ from the last are pushed."""
        effects: list[Effect] = []
        for incarnation, worker in self.workers.items():
            if not (worker.dirty and worker.connected):
                continue
            worker.dirty = False
            try:
                plan = self._plan(worker, now_s)
            except NotFiniteError:
                worker.rejected["not_finite"] += 1
                effects.append(HoldPlan(incarnation, "not_finite"))
                continue
            if plan is not None:
                effects.append(PushPlan(incarnation, worker.stream, plan))
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

    @staticmethod
    def _take_guard(worker: WorkerState, guard: GuardState | None, rejected: Counter[str]) -> int:
        """Keeps the guard's state if it is finite; returns the trips since the last one."""
        if guard is None:
            return 0
        numbers = (
            *(guard.ledger_tokens, guard.threshold_tokens, guard.sigma_tokens),
            *(guard.plain_scale_ratio, guard.lost_tokens),
        )
        if not all(map(isfinite, numbers)):
            rejected["not_finite"] += 1
            return 0
        before, worker.guard = worker.guard, guard
        return max(guard.trips - (before.trips if before else 0), 0)

    def _admit(self, hello: Hello) -> None:
        present = {worker.hello.deployment for worker in self.workers.values()}
        if hello.deployment not in present and len(present) >= self.config.max_deployments:
            raise CapacityError(f"already serving {len(present)} deployments")
        if hello.worker_incarnation not in self.workers and (
            len(self.workers) >= self.config.max_workers
        ):
            raise CapacityError(f"already serving {len(self.workers)} workers")

    def _bounded(self, worker: WorkerState, report: StepReports, now_s: float) -> BoundedReport:
        if report.sequence <= worker.last_sequence:
            raise ReportRejectedError("duplicate")
        least_round_s = worker.costs.least_round_s()
        last_s = worker.joined_s if worker.last_report_s is None else worker.last_report_s
        credit_s = min(worker.credit_s + max(now_s - last_s, 0.0), MOST_CREDIT_S)
        context = ReportContext(
            hello=worker.hello,
            credit_s=credit_s,
            least_round_s=least_round_s,
            table_target_s=worker.costs.table_target_s if worker.costs.has_table else None,
            dropped_rounds=max(report.dropped_rounds - worker.dropped_rounds, 0),
        )
        bounded = bound_report(report, context)
        worker.credit_s = credit_s - len(report.rounds) * least_round_s
        known = self._classes.setdefault(worker.hello.deployment, set())
        cells = []
        for key, counts in bounded.cells:
            label = class_label(key.request_class, known, self.config.max_classes - 1)
            known.add(label)
            band = min(key.context_band, self.config.max_context_bands - 1)
            cells.append((replace(key, request_class=label, context_band=band), counts))
        return replace(bounded, cells=tuple(cells))

    def _plan(self, worker: WorkerState, now_s: float) -> Plan | None:
        """A plan to push, or None where nothing worth sending changed.

        Raises:
            NotFiniteError: the decision holds NaN or infinite numbers.
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

    def _forget(self, now_s: float) -> None:
        """Drops workers that left long ago, once their last sums were flushed."""
        for incarnation, worker in list(self.workers.items()):
            gone = worker.left_s is not None and now_s - worker.left_s > self.config.retention_s
            if gone and not worker.pending:
                del self.workers[incarnation]
        present = {worker.hello.deployment for worker in self.workers.values()}
        self._classes = {name: c for name, c in self._classes.items() if name in present}
        used = {scope for worker in self.workers.values() for scope in scopes(worker.hello)}
        self._sums = {scope: sums for scope, sums in self._sums.items() if scope in used}


def scopes(hello: Hello) -> tuple[str, str]:
    """The store's scopes for a worker: its deployment's, and the fleet's for its target."""
    digest = statistics_digest(hello.identity)
    return f"{hello.deployment}:{digest}", f"{FLEET_CLASS}:{digest}"
