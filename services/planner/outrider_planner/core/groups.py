"""Workers that are planned together: one decision for all who are alike.

Alike are workers of one deployment, model, drafters, limits and identity of costs, as long as what
they see agrees: their acceptance with that of all, their times with those of one in the middle.
What is shared is the plan, found from the sums of those who reported last. What stays a worker's
own: its counts, its costs, and whether it needs plain rounds. A worker that differs is planned
alone until it no longer does. Does not know policies, streams or the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import nlargest

from outrider_planner.core.alike import are_alike, middle, pooled, present_target_s
from outrider_planner.core.assemble import PlanTerms, worth_sending
from outrider_planner.core.evidence import Evidence
from outrider_planner.core.hellos import statistics_digest
from outrider_planner.core.planning import Basis
from outrider_planner.core.settings_book import Settled
from outrider_planner.core.shared_costs import cost_digest
from outrider_planner.core.types import Hello, Plan
from outrider_planner.core.worker_state import IDLE_AFTER_S, WorkerState

# The sums of so many workers are evidence enough; more would only cost time.
MOST_POOLED = 64
# With these the sums of those who reported last are half a second old.
FULL_REPORTS_PER_S = 128.0
CHECK_EVERY_S = 5.0
FRESH_S = 0.5

GroupKey = tuple[object, ...]


@dataclass(slots=True, eq=False)
class Group:
    """``state`` stands for all members; ``basis`` is what the latest plan was made from."""

    members: dict[str, WorkerState] = field(default_factory=dict)
    state: WorkerState | None = None
    basis: Basis | None = None
    # First readings of the store when ``basis`` was made: before and after one it differs.
    store_reads: int = 0
    alone: set[str] = field(default_factory=set)
    _lead: str = ""
    _gathered_s: float = float("-inf")
    _checked_s: dict[str, float] = field(default_factory=dict)
    # By member: the last full report that ``state`` holds, and the plan it took.
    _counted: dict[str, float | None] = field(default_factory=dict)
    _taken: dict[str, Plan] = field(default_factory=dict)
    _plain: tuple[Plan, Plan] | None = None

    def gather(self, now_s: float) -> WorkerState:
        """One state that stands for all: the sums of many, the costs of one in the middle.

        It is as busy as the busiest member, for which probes are dearest. The plan before it is
        the group's own.
        """
        together = [w for name, w in self.members.items() if name not in self.alone]
        latest = nlargest(MOST_POOLED, together, key=_recency)
        lead, before = self._led_by(latest, now_s), self.state
        state = copy(lead)
        near = middle(latest)
        # Judged as the lead judges; nothing of it is stored or counted.
        state.evidence = Evidence(
            fast=pooled(worker.evidence.fast for worker in near),
            drifts=lead.evidence.drifts,
            calibrations=lead.evidence.calibrations,
        )
        state.lately = pooled(worker.lately for worker in near)
        state.present_requests = max(worker.requests_at(now_s) for worker in latest)
        state.last_plain_s = now_s
        for name in ("decision", "plan", "score_maps"):
            setattr(state, name, getattr(before, name) if before else getattr(lead, name))
        self.state, self._gathered_s = state, now_s
        self._counted = {name: w.last_full_s for name, w in self.members.items()}
        return state

    def serves(self, worker: WorkerState, settled: Settled, store_reads: int) -> bool:
        """Whether the latest plan says all there is to say to a member, which then costs nothing.

        That is so where it came, or came back, without news.
        """
        name, basis = worker.hello.worker_incarnation, self.basis
        news = self._counted.get(name) != worker.last_full_s
        if basis is None or self.state is None or news:
            return False
        if worker.costs.has_table != self.state.costs.has_table:
            return False
        return basis.settled is settled and self.store_reads == store_reads

    def latest(self) -> tuple[Basis, WorkerState]:
        """What ``serves`` found to be enough."""
        assert self.basis is not None
        assert self.state is not None
        return self.basis, self.state

    @property
    def size(self) -> int:
        """Workers that are planned together."""
        return len(self.members) - len(self.alone)

    def waiting(self, now_s: float) -> list[WorkerState]:
        """Members with news, of those who are planned together; the others have their own turn."""
        news = [w for w in self.members.values() if w.dirty and w.connected]
        return [worker for worker in news if self.judge(worker, now_s)]

    def take(self, worker: WorkerState, terms: PlanTerms, now_s: float) -> Plan | None:
        """The latest plan for one member; None where it has it, or what differs is not worth it."""
        assert self.state is not None
        assert self.state.plan is not None
        state, name, plan = self.state, worker.hello.worker_incarnation, self.state.plan
        worker.dirty = False
        worker.evidence.adopt(state.evidence)
        worker.decision, worker.cost_model = state.decision, state.cost_model
        worker.score_maps = state.score_maps
        if now_s - worker.last_plain_s > terms.plain_wanted_after_s:
            plan = self._with_plain(plan, terms)
        if worker.plan is not None and self._taken.get(name) is plan:
            return None
        self._taken[name] = plan
        if not worth_sending(worker.plan, plan):
            return None
        worker.version += 1
        worker.plan, worker.planned_s = replace(plan, version=worker.version), now_s
        return worker.plan

    def meet_again(self) -> None:
        """Where most are planned alone it is the one in the middle that differs, or what is known
        of all is out of date: all start together again, around another."""
        if 2 * len(self.alone) > len(self.members):
            self._lead, self.state = "", None
            self.alone.clear()

    def judge(self, worker: WorkerState, now_s: float) -> bool:
        """Whether a member is planned with the others; looked at anew every few seconds.

        Only what both saw just now is compared: where all drift together, whoever is held against
        what was known a while ago looks like another.
        """
        name, last_s = worker.hello.worker_incarnation, worker.last_report_s
        is_due = now_s - self._checked_s.get(name, -1e9) >= CHECK_EVERY_S
        seen_s = self._gathered_s if last_s is None else min(last_s, self._gathered_s)
        if self.state is not None and is_due and now_s - seen_s <= FRESH_S:
            self._checked_s[name] = now_s
            alike = are_alike(worker, self.state)
            (self.alone.discard if alike else self.alone.add)(name)
        return name not in self.alone

    def counts_in_full(self, worker: WorkerState, now_s: float) -> bool:
        """Whether a member's report must count for the plan too, and not for the store alone.

        So many a second do as keep what is pooled fresh; who is planned alone, and who leads,
        always does.
        """
        name = worker.hello.worker_incarnation
        if name == self._lead or name in self.alone or worker.last_full_s is None:
            return True
        return now_s - worker.last_full_s >= len(self.members) / FULL_REPORTS_PER_S

    def leave(self, name: str) -> None:
        """A member is forgotten, or is something else now."""
        self.alone.discard(name)
        for kept in (self.members, self._checked_s, self._counted, self._taken):
            kept.pop(name, None)

    def _led_by(self, latest: list[WorkerState], now_s: float) -> WorkerState:
        """The member whose costs stand for all, for as long as it reports."""
        lead = next((w for w in latest if w.hello.worker_incarnation == self._lead), None)
        if lead is None or now_s - (lead.last_report_s or now_s) > IDLE_AFTER_S:
            lead = sorted(latest, key=present_target_s)[len(latest) // 2]
            self._lead = lead.hello.worker_incarnation
        return lead

    def _with_plain(self, plan: Plan, terms: PlanTerms) -> Plan:
        """The same plan with a share of plain rounds; one object for one plan."""
        if self._plain is None or self._plain[0] is not plan:
            probe = replace(plan.probe, plain_share=terms.plain_share)
            self._plain = plan, replace(plan, probe=probe)
        return self._plain[1]


class GroupBook:
    """Groups by what makes workers alike before they have run."""

    def __init__(self, least_members: int) -> None:
        self._least_members = least_members
        self._groups: dict[GroupKey, Group] = {}
        self._keys: dict[str, GroupKey] = {}

    def join(self, worker: WorkerState) -> None:
        """A worker said hello, perhaps with other contents than before."""
        name, key = worker.hello.worker_incarnation, _key(worker.hello)
        if self._keys.get(name) != key:
            self.leave(name)
        self._keys[name] = key
        self._groups.setdefault(key, Group()).members[name] = worker

    def leave(self, name: str) -> None:
        """A worker is forgotten."""
        key = self._keys.pop(name, None)
        if key is not None:
            self._groups[key].leave(name)
            if not self._groups[key].members:
                del self._groups[key]

    def of(self, worker: WorkerState, now_s: float) -> Group | None:
        """The group to plan a worker with; None where it is planned alone."""
        group = self._groups[self._keys[worker.hello.worker_incarnation]]
        group.meet_again()
        if len(group.members) < self._least_members or not group.judge(worker, now_s):
            return None
        return group

    def counts_in_full(self, worker: WorkerState, now_s: float) -> bool:
        """See ``Group``; all reports of workers that are too few for one count."""
        group = self._groups[self._keys[worker.hello.worker_incarnation]]
        few = len(group.members) < self._least_members or worker.history is not None
        return few or group.counts_in_full(worker, now_s)

    def peers(self, worker: WorkerState) -> Iterable[WorkerState]:
        """Those whose plans were made together with a worker's, itself among them."""
        if not self._is_together(worker):
            return (worker,)
        group = self._groups[self._keys[worker.hello.worker_incarnation]]
        return (w for name, w in group.members.items() if name not in group.alone)

    def _is_together(self, worker: WorkerState) -> bool:
        name = worker.hello.worker_incarnation
        group = self._groups[self._keys[name]]
        return len(group.members) >= self._least_members and name not in group.alone

    def part(self, worker: WorkerState) -> float:
        """The part of all planning that is due to a worker's plan.

        A group has as much as the smallest group would have if it were planned one by one.
        """
        alone = sum(
            len(g.alone) if len(g.members) >= self._least_members else len(g.members)
            for g in self._groups.values()
        )
        together = sum(len(g.members) >= self._least_members for g in self._groups.values())
        weight = self._least_members if self._is_together(worker) else 1
        return weight / (alone + together * self._least_members)


def _key(hello: Hello) -> GroupKey:
    identity = statistics_digest(hello.identity), cost_digest(hello.identity)
    shape = hello.limits, hello.row_buckets, hello.pads_rows, hello.drafters
    return (hello.deployment, *identity, *shape)


def _recency(worker: WorkerState) -> tuple[float, str]:
    last_s = worker.joined_s if worker.last_full_s is None else worker.last_full_s
    return last_s, worker.hello.worker_incarnation
