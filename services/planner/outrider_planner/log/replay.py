"""A decision log played again: the same inputs to fresh planner cores, and what they decide.

Knows how entries become inputs. One core decides as the log says, and must find the same integers;
others have another policy for every deployment, and see the same statistics: those that the plans
of the log gathered. Reads no clock: all times are those of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outrider_planner.core.cells import Cell, steady
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.hellos import HelloRefusedError
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import Policy
from outrider_planner.core.settings import DeploymentSettings, SettingsError
from outrider_planner.core.types import GuardSettings, Objective
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
    """Plans of the log held against those of the replay. ``lost``: entries missing in gaps;
    ``taken_up``: workers that the log met in the middle, whose past it does not hold."""

    same: int = 0
    different: int = 0
    first_difference: str = ""
    lost: int = 0
    taken_up: int = 0


class Replay:
    """Plays the entries of one writer. ``policies``: names to compare with what was logged."""

    def __init__(self, policies: Iterable[str], parse: Parse) -> None:
        """Raises ``UnknownPolicyError``."""
        self.agreement = Agreement()
        self._parse = parse
        self._policies = {name: parse(name) for name in policies}
        self._planners: dict[str, Planner] = {}

    def play(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
        """A sample for every plan of the log that had a worker at work.

        Raises:
            LogError: an entry cannot be understood.
        """
        for entry in entries:
            try:
                sample = self._play(entry)
            except (KeyError, TypeError, SettingsError, HelloRefusedError) as error:
                raise LogError(
                    f"an entry of kind {entry['k']!r} cannot be played: {error!r}"
                ) from error
            if sample is not None:
                yield sample

    def _play(self, entry: Mapping[str, Any]) -> Sample | None:
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
        return None

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
            self.agreement.taken_up += name == AS_LOGGED
            planner.on_hello(hello, entry["stream"], entry["t"])

    def _settings(self, name: str, text: str) -> str:
        if name == AS_LOGGED:
            return text
        return replace(DeploymentSettings.from_json(text), policy=name).to_json()

    def _plan(self, entry: Mapping[str, Any]) -> Sample | None:
        incarnation = entry["worker"]
        for planner in self._planners.values():
            if incarnation in planner.workers:
                planner.plan(incarnation, entry["t"])
        logged = self._planners[AS_LOGGED]
        worker, basis = logged.workers.get(incarnation), logged.basis.get(incarnation)
        if worker is None or basis is None:
            return None
        self._compare(entry, logged)
        if not worker.present_requests:
            return None
        return Sample(
            time_s=entry["t"],
            deployment=worker.hello.deployment,
            worker=incarnation,
            requests=worker.present_requests,
            cells={name: _cell(p, incarnation) for name, p in self._planners.items()},
        )

    def _compare(self, entry: Mapping[str, Any], planner: Planner) -> None:
        """Only plans that were pushed stand in the log; of the others nothing was kept."""
        for logged in entry["plans"]:
            for incarnation, version in logged["workers"].items():
                worker = planner.workers.get(incarnation)
                if worker is None or worker.plan is None:
                    continue
                if _integers(plan_values(worker.plan)) == _integers(logged["plan"]):
                    self.agreement.same += 1
                else:
                    self._differ(f"t={entry['t']:.3f} s, worker {incarnation}, plan {version}")

    def _differ(self, where: str) -> None:
        self.agreement.different += 1
        self.agreement.first_difference = self.agreement.first_difference or where


def writers(entries: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Planner incarnations in a log, with the number of their entries."""
    return Counter(entry["w"] for entry in entries)


def _cell(planner: Planner, incarnation: str) -> Cell | None:
    worker, basis = planner.workers.get(incarnation), planner.basis.get(incarnation)
    if worker is None or worker.decision is None or basis is None or basis.cost is None:
        return None
    return steady(worker.decision, basis.snapshot.drafters, basis.cost, basis.step())


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
