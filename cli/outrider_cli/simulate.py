"""`outrider simulate`: scenarios by name, or the whole suite of targets, from fixed seeds.

Knows flags, files and what is printed. The simulator is imported when it is asked for.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider_cli.errors import CommandError

if TYPE_CHECKING:
    from outrider_planner.sim.scenarios import Scenario

DEFAULT_POLICIES = ("two_stage", "lightspec", "static:3", "off", "clairvoyant")
TARGETS = "targets"
_ABOUT = {
    "steady-chat": "chat at a steady load",
    "steady-code": "code at a steady load",
    "steady-math": "mathematics at a steady load",
    "mixed": "chat, code and mathematics in one batch; scores tell good drafts from bad ones",
    "perfect-scores": "the same, with scores that are never wrong",
    "useless-scores": "the same, with scores that say nothing",
    "bursts": "code with easy and hard stretches of some thirty rounds",
    "dip": "acceptance good, next to none, then good again; measured after the return",
    "switch": "all text turns from code to chat at once",
    "churn": "short answers: new requests in nearly every round",
    "ramp": "1 → 256 → 1 requests, code on the way up, prose down; fixed work",
    "arrivals": "the same load as arrivals in time; fixed work",
    "lookups": "prompt lookup: most rounds of prose have no draft",
    "long-contexts": "answers of thousands of tokens, whose drafts hold less and less",
    "misread-costs": "the target and the drafter are dearer than the cost table says",
}


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """Flags of `outrider simulate`; names are those of the flags."""

    scenarios: tuple[str, ...] = ()
    suite: str | None = None
    policies: tuple[str, ...] = DEFAULT_POLICIES
    repetitions: int | None = None
    machine: str | None = None
    requests: int | None = None
    json_file: Path | None = None
    plots: Path | None = None
    processes: int | None = None

    @property
    def process_count(self) -> int:
        """As many as there are cores, unless told otherwise."""
        return self.processes or os.cpu_count() or 1


def simulate(options: SimulateOptions) -> bool:
    """Runs what is asked for and prints it; False where a target of the suite is missed.

    Raises:
        CommandError: an unknown scenario, suite, policy or machine.
    """
    if options.suite is not None:
        return _suite(options)
    if not options.scenarios:
        print(listing())
        return True
    # All names are looked up before the first of them is played.
    scenarios = [_scenario(name, options) for name in options.scenarios]
    results = [_play(scenario, options) for scenario in scenarios]
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(results, indent=1) + "\n")
    return True


def listing() -> str:
    """What can be played, a line each."""
    from outrider_planner.sim.scenarios import NAMED

    width = max(map(len, [*NAMED, f"--suite {TARGETS}"]))
    lines = [f"  {name.ljust(width)}  {_ABOUT[name]}" for name in NAMED]
    suite = f"  {f'--suite {TARGETS}'.ljust(width)}  every claim of the planner, with intervals"
    return "\n".join(["Scenarios, to be named in any number:", *lines, "", suite])


def _suite(options: SimulateOptions) -> bool:
    from outrider_planner.sim import report, suite

    if options.suite != TARGETS:
        raise CommandError(f"unknown suite {options.suite!r}: there is {TARGETS!r}")
    found = suite.evaluate(options.repetitions or suite.REPETITIONS, options.process_count)
    for title, rows in found.tables.items():
        print(f"\n{title}\n{report.table(rows)}")
    print(f"\n{report.claim_lines(found.claims)}")
    if options.json_file is not None:
        report.write_json(options.json_file, found.claims)
    return all(claim.met for claim in found.claims)


def _play(scenario: Scenario, options: SimulateOptions) -> dict[str, Any]:
    from outrider_planner.core.policies import UnknownPolicyError
    from outrider_planner.sim import contenders, report

    seeds = options.repetitions or 5
    jobs = [(scenario, name, seed) for name in options.policies for seed in range(seeds)]
    try:
        runs = contenders.in_parallel(contenders.run_of, jobs, options.process_count)
    except UnknownPolicyError as error:
        raise CommandError(str(error)) from error
    by_policy = {
        name: runs[place * seeds : (place + 1) * seeds]
        for place, name in enumerate(options.policies)
    }
    rows = report.scenario_rows(by_policy)
    times = "1 repetition" if seeds == 1 else f"{seeds} repetitions"
    print(f"\n{scenario.name}, {times}\n{report.table(rows)}")
    if options.plots is not None:
        firsts = {name: each[0] for name, each in by_policy.items()}
        _plot(options.plots, scenario.name, report.plot(scenario.name, firsts))
    return {"scenario": scenario.name, "repetitions": seeds, "policies": rows}


def _plot(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace(':', '_').replace('/', '_')}.svg"
    path.write_text(text)
    print(f"plot: {path}")


def _scenario(name: str, options: SimulateOptions) -> Scenario:
    from outrider_planner.sim.cost_tables import CostFileError, named
    from outrider_planner.sim.scenarios import NAMED

    if name not in NAMED:
        raise CommandError(f"unknown scenario {name!r}; known are {_known()}")
    changes: dict[str, Any] = {}
    if options.machine is not None:
        changes["machine"] = options.machine
    if options.requests is not None:
        changes["requests"] = options.requests
    try:
        scenario = NAMED[name](**changes)
        named(scenario.machine)
    except TypeError as error:
        raise CommandError(f"scenario {name!r} sets its own load: leave out --requests") from error
    except CostFileError as error:
        raise CommandError(str(error)) from error
    return replace(scenario, name=name if not changes else scenario.name)


def _known() -> str:
    from outrider_planner.sim.scenarios import NAMED

    return ", ".join(NAMED)
