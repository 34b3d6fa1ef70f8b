"""The planner as a discrete-event core: inputs come with their time, effects are returned.

Knows workers, deployments, when plans are due, what is flushed to the store and what is read from
it. Reads no clock, does no I/O, draws no chance: the same inputs give the same effects, so a log
can be replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from outrider_planner.core.assemble import NotFiniteError, PlanTerms
from outrider_planner.core.events import (
    Effect,
    FlushDeltas,
    ForgetScope,
    ForgetWorker,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReadScope,
    ReadSettings,
    RefuseStored,
    ReportOutcome,
    StoreSettings,
    WarmStart,
)
from outrider_planner.core.groups import GroupBook
from outrider_planner.core.hellos import CapacityError, check_hello
from outrider_planner.core.intake import take_in
from outrider_planner.core.planning import Basis, next_plan, plan_terms
from outrider_planner.core.policies.base import remembers_rounds
from outrider_planner.core.policies.history import RoundHistory
from outrider_planner.core.policies.rules import bounded
from outrider_planner.core.settings import DeploymentSettings, SettingsError
from outrider_planner.core.settings_book import SettingsBook, Settled
from outrider_planner.core.shadows import ShadowBook
from outrider_planner.core.shared_costs import SharedCosts, cost_digest
from outrider_planner.core.shares import take_pending
from outrider_planner.core.slow_sums import SlowSums, scopes
from outrider_planner.core.sources import sources
from outrider_planner.core.types import Hello, Plan, StepReports
from outrider_planner.core.worker_state import WorkerState

__all__ = ["Planner", "scopes"]


class Planner:
    """All workers of one planner process. Every method takes the present monotonic time."""

    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.workers: dict[str, WorkerState] = {}
        # What the latest decision of a worker was made from.
        self.basis: dict[str, Basis] = {}
        default = Settled(config.default_settings(), config.policy)
        self.settings = SettingsBook(default, config.parse)
        self.shadows = ShadowBook()
        self._groups = GroupBook(config.share_from_workers)
        self._costs = SharedCosts()
        self._sums = SlowSums()
        self._first_reads = 0
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
        self._groups.join(self.workers[hello.worker_incarnation])
        effects += [ReadScope(scope) for scope in self._sums.unread(hello)]
        effects.append(ReadSettings(hello.deployment))
        return effects + self._costs.on_hello(self.workers[hello.worker_incarnation], now_s)

    def on_reports(
        self, incarnation: str, stream: int, report: StepReports, now_s: float
    ) -> ReportOutcome:
        """Counts what is believable of a report; a plan falls due if it brought news."""
        worker = self.workers.get(incarnation)
        if worker is None or worker.stream != stream:
            return ReportOutcome(Counter({"unknown_stream": 1}))
        self._remember(worker)
        classes = self._classes.setdefault(worker.hello.deployment, set())
        in_full = self._groups.counts_in_full(worker, now_s)
        return take_in(worker, report, now_s, classes, self.config, in_full)

    def on_gone(self, incarnation: str, stream: int, now_s: float) -> None:
        """A stream ended; a younger one of the same worker is not touched."""
        worker = self.workers.get(incarnation)
        if worker is not None and worker.stream == stream:
            worker.left_s = now_s

    def on_store_snapshot(
        self, scope: str, buckets_newest_first: Sequence[Mapping[str, float]]
    ) -> None:
        """What the store holds of a scope; workers that started without it are planned anew."""
        first = self._sums.take(scope, buckets_newest_first)
        self._first_reads += first
        for worker in self.workers.values():
            worker.dirty = worker.dirty or (first and scope in scopes(worker.hello))

    def on_settings(
        self, deployment: str, settings: DeploymentSettings, now_s: float
    ) -> list[Effect]:
        """An operator changed a deployment's settings; its workers are planned anew at once.

        Raises:
            SettingsConflictError: ``settings.version`` is not the present one.
            SettingsError: a policy or shadow is not known here.
        """
        kept = self.settings.put(deployment, settings)
        for worker in self._of(deployment):
            worker.dirty, worker.next_plan_s = True, now_s
        return [StoreSettings(deployment, kept.version, kept.to_json())]

    def on_stored_settings(self, deployment: str, text: str | None) -> list[Effect]:
        """What the store holds of a deployment's settings, None where it holds none.

        A store that knows less than this planner, after a flush or a failover, is told again.
        """
        present = self.settings.of(deployment).settings
        try:
            stored = DeploymentSettings.from_json(text) if text is not None else None
            changed = stored is not None and self.settings.adopt(deployment, stored)
        except SettingsError as error:
            return [RefuseStored(deployment, f"settings: {error}")]
        for worker in self._of(deployment):
            worker.dirty = worker.dirty or changed
        if present.version > (stored.version if stored else 0):
            return [StoreSettings(deployment, present.version, present.to_json())]
        return []

    def on_stored_costs(self, digest: str, text: str | None) -> list[Effect]:
        """A cost table of this identity, None where none is stored; workers without one take it."""
        return self._costs.on_stored(digest, text, self.workers.values())

    def on_tick(self, now_s: float) -> list[Effect]:
        """Timed work: flushes, reads, and forgetting workers that left."""
        effects: list[Effect] = []
        if now_s - self._last_flush_s >= self.config.flush_interval_s:
            self._last_flush_s = now_s
            effects += self._forget(now_s) + self.flush()
        if now_s - self._last_read_s >= self.config.read_interval_s:
            self._last_read_s = now_s
            effects += [ReadScope(scope) for scope in sorted(self._used_scopes())]
            effects += [ReadSettings(name) for name in sorted(self._deployments())]
            effects += self._costs.on_read_time(self.workers.values(), now_s)
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
        """Plans for one worker, and for all with news that are planned together with it.

        Only what differs from a worker's last plan is pushed. A plan that cannot be found is tried
        again a little later, and touches nobody who is planned apart.
        """
        worker = self.workers[incarnation]
        try:
            found = self._plans(worker, now_s)
        except Exception as error:  # a policy from outside may raise anything
            reason = "not_finite" if isinstance(error, NotFiniteError) else "failed"
            worker.rejected[reason] += 1
            for peer in self._groups.peers(worker):
                peer.next_plan_s = now_s + self.config.plan_retry_s
            return [HoldPlan(incarnation, reason, error)]
        effects: list[Effect] = []
        for planned, plan in found:
            if plan is not None:
                effects.append(PushPlan(planned.hello.worker_incarnation, planned.stream, plan))
            effects += self._warm_start(planned)
        return effects

    def planned(self, incarnation: str, now_s: float, took_s: float) -> None:
        """Planning took this long: the worker waits until all others had as much, and more.

        So planning takes at most its share of the event loop, however many workers there are.
        Those that are planned together wait together, so that many reports are in one plan.
        """
        worker = self.workers[incarnation]
        wait_s = took_s / self._groups.part(worker) / self.config.planning_share
        peers = list(self._groups.peers(worker))
        if len(peers) > 1:
            wait_s = max(wait_s, self.config.shared_pause_s)
        for peer in peers:
            peer.next_plan_s = max(peer.next_plan_s, now_s + wait_s)

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
        present = self._deployments()
        if hello.deployment not in present and len(present) >= self.config.max_deployments:
            raise CapacityError(f"already serving {len(present)} deployments")
        if hello.worker_incarnation not in self.workers and (
            len(self.workers) >= self.config.max_workers
        ):
            raise CapacityError(f"already serving {len(self.workers)} workers")

    def _remember(self, worker: WorkerState) -> None:
        """Single rounds are kept only where a policy decides from them."""
        settled = self.settings.of(worker.hello.deployment)
        if not remembers_rounds((settled.policy, *settled.shadows)):
            worker.history = None
        elif worker.history is None:
            worker.history = RoundHistory.of(worker.hello)

    def _plans(self, worker: WorkerState, now_s: float) -> list[tuple[WorkerState, Plan | None]]:
        """The worker's plan, with those of its group; None where nothing worth sending changed.

        Raises:
            NotFiniteError: the decision holds NaN or infinite numbers.
            Exception: whatever a policy raises.
        """
        settled = self.settings.of(worker.hello.deployment)
        together = not remembers_rounds((settled.policy, *settled.shadows))
        group = self._groups.of(worker, now_s) if together else None
        if group is None:
            basis = self._basis(worker, settled)
            plan = next_plan(worker, basis, self._terms(worker, settled), now_s)
            worker.dirty, self.basis[worker.hello.worker_incarnation] = False, basis
            return [(worker, plan)]
        if group.serves(worker, settled, self._first_reads):
            basis, state = group.latest()
        else:
            state = group.gather(now_s)
            basis = self._basis(state, settled, group.size)
            next_plan(state, basis, self._terms(state, settled), now_s)
            group.basis, group.store_reads = basis, self._first_reads
        waiting, terms = group.waiting(now_s), self._terms(state, settled)
        self.basis |= {member.hello.worker_incarnation: basis for member in waiting}
        return [(member, group.take(member, terms, now_s)) for member in waiting]

    def _warm_start(self, worker: WorkerState) -> list[Effect]:
        """Said once, when all was read, of a worker whose plan rests on what others learned."""
        basis = self.basis[worker.hello.worker_incarnation]
        warm = basis.sources.warm and not self._sums.unread(worker.hello)
        if worker.warm_said or not (warm or (basis.workers > 1 and not worker.fast)):
            return []
        worker.warm_said = True
        said = basis.sources.sentence() or f"start with the plan of {basis.workers} workers"
        return [WarmStart(worker.hello.worker_incarnation, worker.hello.deployment, said)]

    def _basis(self, worker: WorkerState, settled: Settled, workers: int = 1) -> Basis:
        own, fleet = self._sums.of(worker.hello)
        worker.cost_model = worker.costs.model()
        return Basis(
            snapshot=bounded(worker.snapshot(own, fleet), settled.bounds),
            cost=worker.cost_model,
            limits=worker.hello.limits,
            settled=settled,
            sources=sources(worker, own, fleet, cost_digest(worker.hello.identity)),
            workers=workers,
        )

    def _terms(self, worker: WorkerState, settled: Settled) -> PlanTerms:
        return plan_terms(self.config, settled, len(self.workers), worker.evidence.unsettled)

    def _of(self, deployment: str) -> list[WorkerState]:
        return [w for w in self.workers.values() if w.hello.deployment == deployment]

    def _deployments(self) -> set[str]:
        return {worker.hello.deployment for worker in self.workers.values()}

    def _used_scopes(self) -> set[str]:
        return {scope for worker in self.workers.values() for scope in scopes(worker.hello)}

    def _forget(self, now_s: float) -> list[Effect]:
        """Drops workers that left long ago, once their last sums were flushed."""
        effects: list[Effect] = []
        for incarnation, worker in list(self.workers.items()):
            gone = worker.left_s is not None and now_s - worker.left_s > self.config.retention_s
            if gone and not worker.pending:
                del self.workers[incarnation]
                self.basis.pop(incarnation, None)
                self.shadows.forget(incarnation)
                self._groups.leave(incarnation)
                effects.append(ForgetWorker(incarnation))
        present = self._deployments()
        self.settings.keep_only(present)
        self._classes = {name: c for name, c in self._classes.items() if name in present}
        return effects + [ForgetScope(s) for s in self._sums.keep_only(self._used_scopes())]
