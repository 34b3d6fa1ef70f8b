"""Plays a scenario: the real planner core and a simulated worker on one virtual clock.

Knows when reports leave and when plans arrive. Does not judge the result. Where a plan is fixed
(static lengths, the clairvoyant) no planner runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from outrider_planner.core.events import (
    Effect,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReadScope,
)
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import Policy
from outrider_planner.core.types import (
    DrafterCost,
    DrafterTraits,
    EngineIdentity,
    FloatArray,
    Hello,
    Plan,
    StepReports,
    WorkerLimits,
)
from outrider_planner.core.worker_state import Forecast
from outrider_planner.sim.acceptance import Drafter
from outrider_planner.sim.cost_tables import DRAFTER, MachineTable, named
from outrider_planner.sim.fleet import class_names, fleet_sums
from outrider_planner.sim.machine import Machine
from outrider_planner.sim.plans import PlanTables
from outrider_planner.sim.scenarios import Scenario
from outrider_planner.sim.tally import Tally
from outrider_planner.sim.worker import RoundRecord, SimulatedWorker
from outrider_planner.sim.world import World, work_list

_INCARNATION = "simulated"
_TICK_S = 1.0


class Director(Protocol):
    """Where plans come from."""

    def begin(self) -> Plan:
        """The plan in force at the first round."""
        ...

    def report(self, report: StepReports, now_s: float) -> Plan | None:
        """A new plan after a report, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDirector:
    """One plan for ever."""

    plan: Plan

    def begin(self) -> Plan:
        """See Director."""
        return self.plan

    def report(self, report: StepReports, now_s: float) -> Plan | None:
        """See Director: never another one."""
        return None


@dataclass(frozen=True, slots=True)
class TextDirector:
    """One plan for every domain: that of the text which most running requests have."""

    plans: tuple[Plan, ...]

    def begin(self) -> Plan:
        """See Director."""
        return self.plans[0]

    def report(self, report: StepReports, now_s: float) -> Plan | None:
        """See Director: it sees the text itself, and needs no reports."""
        return None


class PlannerDirector:
    """The real planner core with one worker."""

    def __init__(
        self, hello: Hello, policy: Policy, warm: Mapping[str, int], interval_ms: int
    ) -> None:
        self._planner = Planner(PlannerConfig(policy=policy, report_interval_ms=interval_ms))
        self._hello, self._warm = hello, warm
        self._last_tick_s = 0.0
        self.forecasts: list[tuple[float, Forecast]] = []

    def begin(self) -> Plan:
        """Says hello; the store answers at once with the fleet's sums, if there are any."""
        self._answer(self._planner.on_hello(self._hello, 1, 0.0))
        plan = _pushed(self._planner.replan(0.0))
        if plan is None:
            raise RuntimeError("the planner pushed no first plan")
        return plan

    def report(self, report: StepReports, now_s: float) -> Plan | None:
        """Hands the report in; a plan that follows at once is returned.

        Raises:
            RuntimeError: the planner refused part of the report: the simulator broke physics.
        """
        outcome = self._planner.on_reports(_INCARNATION, 1, report, now_s)
        if outcome.rejected:
            raise RuntimeError(f"the planner refused a simulated report: {outcome.rejected}")
        worker = self._planner.workers[_INCARNATION]
        if worker.forecast is not None:
            self.forecasts.append((now_s, worker.forecast))
        if now_s - self._last_tick_s >= _TICK_S:
            self._last_tick_s = now_s
            self._planner.on_tick(now_s)
        return _pushed(self._planner.replan(now_s))

    def _answer(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ReadScope) and self._warm:
                self._planner.on_store_snapshot(effect.scope, [self._warm])


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What happened: one row per round in the order of RoundRecord's fields, from the first."""

    scenario: Scenario
    policy: str
    rounds: FloatArray
    plans: int
    request_busy_s: FloatArray
    request_tokens: FloatArray
    forecasts: tuple[tuple[float, Forecast], ...] = ()

    def column(self, name: str) -> FloatArray:
        """One field of all rounds."""
        values: FloatArray = self.rounds[:, RoundRecord._fields.index(name)]
        return values

    def rate(self, first: int | None = None, last: int | None = None) -> float:
        """Expected tokens per second over rounds; from the scenario's first measured one on."""
        span = slice(self.scenario.skip_rounds if first is None else first, last)
        tokens, seconds = self.column("expected_tokens")[span], self.column("expected_s")[span]
        return float(tokens.sum() / seconds.sum())

    @property
    def busy_s(self) -> float:
        """Device time of the whole list."""
        return float(self.column("measured_s").sum())

    @property
    def token_s(self) -> float:
        """Mean over requests of their time per output token."""
        return float((self.request_busy_s / self.request_tokens).mean())


def hello_for(scenario: Scenario, machine: MachineTable, score_bins: int) -> Hello:
    """What the simulated worker says of itself."""
    n, d = scenario.max_requests, scenario.draft_tokens
    traits = DrafterTraits(
        DRAFTER,
        cost=DrafterCost.HOST if scenario.sparse else DrafterCost.AUTOREGRESSIVE,
        max_draft_tokens=d,
        sparse=scenario.sparse and not scenario.claims_dense,
        score_bins=score_bins,
        writes_kv=not scenario.sparse,
    )
    return Hello(
        deployment="simulation",
        worker_incarnation=_INCARNATION,
        identity=EngineIdentity(model=machine.name, drafters=(DRAFTER,)),
        limits=WorkerLimits(n, scenario.most_rows(machine), d),
        row_buckets=machine.row_buckets,
        pads_rows=machine.pads_rows,
        drafters=(traits,),
        cost_table=machine.table,
    )


def play(scenario: Scenario, policy: Policy | Plan | TextDirector, seed: int = 0) -> Run:
    """One run; the same seed serves the same requests to every policy."""
    machine_table = named(scenario.machine)
    streams = np.random.SeedSequence([seed, 7]).spawn(3)
    work_rng, draft_rng, round_rng = (np.random.default_rng(stream) for stream in streams)
    drafter = Drafter(scenario.domains, scenario.spread, scenario.draft_tokens, draft_rng)
    work = work_list(scenario.stretches, scenario.lengths, work_rng)
    lasting = scenario.lengths.persistent
    world = World(work, endless=scenario.rounds is not None, persistent=lasting)
    machine = Machine(machine_table, scenario.max_requests, scenario.draft_tokens, scenario.truth)
    labels = class_names(scenario)
    known = tuple(dict.fromkeys(labels))
    classes = np.array([known.index(label) for label in labels])
    rows = scenario.most_rows(machine_table)
    worker = SimulatedWorker(world, drafter, machine, classes, rows, round_rng)
    director: Director
    if isinstance(policy, Plan):
        director = FixedDirector(policy)
    elif isinstance(policy, TextDirector):
        director = policy
    else:
        hello = hello_for(scenario, machine_table, drafter.score_bins)
        warm = fleet_sums(scenario) if scenario.warm else {}
        director = PlannerDirector(hello, policy, warm, scenario.report_interval_ms)
    tally = Tally(DRAFTER, known, scored=drafter.score_bins > 1)
    records, plans = _loop(scenario, worker, director, tally, known)
    plan = policy.plans[0] if isinstance(policy, TextDirector) else policy
    name = plan.policy if isinstance(plan, Plan) else plan.name
    forecasts = tuple(director.forecasts) if isinstance(director, PlannerDirector) else ()
    return Run(
        scenario,
        name,
        np.array(records, dtype=np.float64),
        plans,
        world.busy_s_of,
        work.tokens.astype(np.float64),
        forecasts,
    )


def _loop(
    scenario: Scenario,
    worker: SimulatedWorker,
    director: Director,
    tally: Tally,
    classes: Sequence[str],
) -> tuple[list[RoundRecord], int]:
    """Rounds until the work or the rounds are over; (records, plans that arrived)."""
    planned = isinstance(director, PlannerDirector)

    def tables_of(plan: Plan) -> PlanTables:
        return PlanTables(plan, DRAFTER, classes, scenario.draft_tokens)

    by_text = (
        [tables_of(plan) for plan in director.plans] if isinstance(director, TextDirector) else []
    )
    tables = tables_of(director.begin())
    records: list[RoundRecord] = []
    arriving: list[tuple[float, Plan]] = []
    now_s = reported_s = 0.0
    plans = 1
    worker.warm_start()
    while worker.has_work and (scenario.rounds is None or len(records) < scenario.rounds):
        now_s += worker.idle_s(now_s)
        if arriving and arriving[0][0] <= now_s:
            tables = tables_of(arriving.pop(0)[1])
            plans += 1
        if by_text:
            tables = by_text[worker.prevailing_domain]
        outcome, record = worker.round(tables, scenario.shift_at(len(records)), now_s)
        records.append(record)
        now_s += record.measured_s
        if not planned:
            continue
        tally.rounds.append(outcome)
        if now_s - reported_s >= scenario.report_interval_ms * 1e-3:
            reported_s = now_s
            plan = director.report(tally.take(), now_s)
            if plan is not None:
                arriving.append((now_s + scenario.plan_delay_s, plan))
    return records, plans


def _pushed(effects: Sequence[Effect]) -> Plan | None:
    """The latest plan.

    Raises:
        RuntimeError: the planner held one back: in a simulation that is a fault.
    """
    for effect in effects:
        if isinstance(effect, HoldPlan):
            raise RuntimeError(f"no plan: {effect.reason}") from effect.error
    plans = [effect.plan for effect in effects if isinstance(effect, PushPlan)]
    return plans[-1] if plans else None
