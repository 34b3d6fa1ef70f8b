"""A decision log played again: the same inputs to fresh planner cores, and what they decide.

Knows how entries become inputs. One core decides as the log says, and must find the same integers;
others have another policy for every deployment, and see the same statistics: those that the plans
of the log gathered. Reads no clock: all times are those of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider_planner.core.cells import Cell, steady
from outrider_planner.core.events import Effect, HoldPlan, PlannerConfig, PushPlan
from outrider_planner.core.hellos import HelloRefusedError
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import Policy
from outrider_planner.core.settings import DeploymentSettings, SettingsError
from outrider_planner.core.types import GuardSettings, Objective, Plan
from outrider_planner.core.worker_state import WorkerState
from outrider_planner.log.entries import LogError, hello_from, plan_values, report_from

AS_LOGGED = "as logged"
Parse = Callable[[str], Policy]


@dataclass(frozen=True, slots=True)
class Sample:
    """What each policy would do with one worker at one moment, at its load then.

    ``cells``: by policy, in the steady state of that n; None where it has no drafter or no costs.
    """

    time_s: float
    deployment: str
    worker: str
    requests: int
    cells: Mapping[str, Cell | None]


@dataclass(slots=True)
class Agreement:
    """Plans of the log held against those of the replay, for every worker that one was sent to.

    ``different``: other integers, another version, sent in one of the two alone, or held in one
    alone. ``lost``: entries missing in gaps; ``taken_up``: workers that the log met in the middle,
    whose past it does not hold: of them the integers are compared.
    """

    same: int = 0
    different: int = 0
    first_difference: str = ""
    lost: int = 0
    taken_up: int = 0


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A plan as it is compared."""

    version: int
    integers: list[Any]


class Replay:
    """Plays the entries of one writer. ``policies``: names to compare with what was logged."""

    def __init__(self, policies: Iterable[str], parse: Parse) -> None:
        """Raises ``UnknownPolicyError``."""
        self.agreement = Agreement()
        self._parse = parse
        self._policies = {name: parse(name) for name in policies}
        self._planners: dict[str, Planner] = {}
        self._taken_up: set[str] = set()

    def play(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
        """A sample for every worker at work, whenever the log has a plan for it.

        Raises:
            LogError: an entry cannot be understood.
        """
        for entry in entries:
            try:
                samples = self._play(entry)
            except (KeyError, TypeError, SettingsError, HelloRefusedError) as error:
                raise LogError(
                    f"an entry of kind {entry['k']!r} cannot be played: {error!r}"
                ) from error
            yield from samples

    def _play(self, entry: Mapping[str, Any]) -> Sequence[Sample]:
        kind = entry["k"]
        if kind == "start":
            self._start(entry["config"])
        elif kind == "gap":
            self.agreement.lost += entry["lost"]
        elif not self._planners:
            self.agreement.lost += 1
        elif kind == "plan":
            return self._plan(entry)
        else:
            for name, planner in self._planners.items():
                self._feed(name, planner, entry)
        return ()

    def _start(self, config: Mapping[str, Any]) -> None:
        """The first beginning counts; later ones repeat it for those who join there."""
        if self._planners:
            return
        logged = _config(config, self._parse)
        self._planners[AS_LOGGED] = Planner(logged)
        for name, policy in self._policies.items():
            self._planners[name] = Planner(replace(logged, policy=policy))

    def _feed(self, name: str, planner: Planner, entry: Mapping[str, Any]) -> None:
        now_s = entry["t"]
        match entry["k"]:
            case "hello":
                planner.on_hello(hello_from(entry["hello"]), entry["stream"], now_s)
            case "present":
                self._take_up(name, planner, entry)
            case "report":
                report = report_from(entry["report"])
                planner.on_reports(entry["worker"], entry["stream"], report, now_s)
            case "gone":
                planner.on_gone(entry["worker"], entry["stream"], now_s)
            case "sums":
                planner.on_store_snapshot(entry["scope"], (entry["sums"],))
            case "settings":
                planner.on_stored_settings(entry["deployment"], self._settings(name, entry["text"]))
            case "costs":
                planner.on_stored_costs(entry["digest"], entry["text"])
            case "tick":
                # Sums leave between ticks; a worker is forgotten only once they left.
                planner.flush()
                planner.on_tick(now_s)
            case other:
                raise LogError(f"an entry has the unknown kind {other!r}")

    def _take_up(self, name: str, planner: Planner, entry: Mapping[str, Any]) -> None:
        hello = hello_from(entry["hello"])
        if hello.worker_incarnation not in planner.workers:
            if name == AS_LOGGED:
                self.agreement.taken_up += 1
                self._taken_up.add(hello.worker_incarnation)
            planner.on_hello(hello, entry["stream"], entry["t"])

    def _settings(self, name: str, text: str) -> str:
        if name == AS_LOGGED:
            return text
        return replace(DeploymentSettings.from_json(text), policy=name).to_json()

    def _plan(self, entry: Mapping[str, Any]) -> Sequence[Sample]:
        incarnation, planner = entry["worker"], self._planners[AS_LOGGED]
        if incarnation not in planner.workers:
            return ()
        waiting = [name for name, worker in planner.workers.items() if worker.dirty]
        self._compare(entry, planner, planner.plan(incarnation, entry["t"]))
        # With those that are planned together; other policies may plan them one by one.
        planned = [name for name in waiting if not planner.workers[name].dirty]
        for other in (self._planners[name] for name in self._policies):
            for name in planned:
                if other.workers[name].dirty:
                    other.plan(name, entry["t"])
        at_work = [name for name in planned if planner.workers[name].present_requests]
        return [self._sample(entry["t"], name, planner.workers[name]) for name in at_work]

    def _sample(self, time_s: float, incarnation: str, worker: WorkerState) -> Sample:
        requests = worker.present_requests
        return Sample(
            time_s=time_s,
            deployment=worker.hello.deployment,
            worker=incarnation,
            requests=requests,
            cells={n: _cell(p, incarnation, requests) for n, p in self._planners.items()},
        )

    def _compare(
        self, entry: Mapping[str, Any], planner: Planner, effects: Sequence[Effect]
    ) -> None:
        """All that was sent, to whom, and that nothing else was; what is not sent is not logged."""
        where = f"t={entry['t']:.3f} s, worker "
        held = any(isinstance(effect, HoldPlan) for effect in effects)
        if held != entry["held"]:
            self._differ(f"{where}{entry['worker']}, held in {'replay' if held else 'log'} alone")
        sent = _sent(entry["plans"])
        made = self._made(effects, sent, planner)
        for incarnation in sorted((sent.keys() | made.keys()) & planner.workers.keys()):
            if sent.get(incarnation) == made.get(incarnation):
                self.agreement.same += 1
            else:
                number = (sent.get(incarnation) or made[incarnation]).version
                self._differ(f"{where}{incarnation}, plan {number}")

    def _made(
        self, effects: Iterable[Effect], sent: Mapping[str, _Numbered], planner: Planner
    ) -> dict[str, _Numbered]:
        """What the replay sends. Whoever was taken up counts its plans anew, and has a first one
        that the log has not: the plan it has stands for the one that was sent."""
        made = {e.incarnation: _numbered(e.plan) for e in effects if isinstance(e, PushPlan)}
        for incarnation in self._taken_up & (sent.keys() | made.keys()):
            made.pop(incarnation, None)
            worker = planner.workers.get(incarnation)
            if worker is not None and worker.plan is not None and incarnation in sent:
                version = sent[incarnation].version
                made[incarnation] = replace(_numbered(worker.plan), version=version)
        return made

    def _differ(self, where: str) -> None:
        self.agreement.different += 1
        self.agreement.first_difference = self.agreement.first_difference or where


def writers(entries: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Planner incarnations in a log, with the number of their entries."""
    return Counter(entry["w"] for entry in entries)


def _sent(logged: Iterable[Mapping[str, Any]]) -> dict[str, _Numbered]:
    """What the log says was sent, by worker."""
    return {
        incarnation: _Numbered(version, _integers(item["plan"]))
        for item in logged
        for incarnation, version in item["workers"].items()
    }


def _numbered(plan: Plan) -> _Numbered:
    return _Numbered(plan.version, _integers(plan_values(plan)))


def _cell(planner: Planner, incarnation: str, requests: int) -> Cell | None:
    worker, basis = planner.workers.get(incarnation), planner.basis.get(incarnation)
    if worker is None or worker.decision is None or basis is None or basis.cost is None:
        return None
    return steady(worker.decision, basis.snapshot.drafters, basis.cost, basis.step(requests))


def _config(values: Mapping[str, Any], parse: Parse) -> PlannerConfig:
    nested = {
        "policy": parse(values["policy"]),
        "objective": Objective(values["objective"]),
        "guard": GuardSettings(**values["guard"]),
    }
    return PlannerConfig(**{**values, **nested}, parse=parse)


def _integers(values: Mapping[str, Any]) -> list[Any]:
    """What two plans must have in common, tuples as the lists that JSON makes of them."""
    return [_lists(values[key]) for key in ("ladder", "draft_tokens", "target_rows")]


def _lists(value: Any) -> Any:
    """Tuples as the lists that JSON makes of them."""
    if isinstance(value, Mapping):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
