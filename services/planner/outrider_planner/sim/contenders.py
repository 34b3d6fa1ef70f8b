"""Who plays: policies of the planner, fixed lengths, the clairvoyant; by name, over many seeds.

Knows how a name becomes something to play. Does not judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from outrider_planner.core.policies import parse
from outrider_planner.core.types import FloatArray, Plan
from outrider_planner.sim.baselines import clairvoyant_plan, static_plan_of
from outrider_planner.sim.runner import Run, TextDirector, play
from outrider_planner.sim.scenarios import Scenario

CLAIRVOYANT = "clairvoyant"
CLAIRVOYANT_BY_TEXT = "clairvoyant by text"
OFF = "static:0"
_Z95 = 1.96
_Result = TypeVar("_Result")


def run_of(scenario: Scenario, contender: str, seed: int) -> Run:
    """One contender's run: ``clairvoyant``, ``clairvoyant by text`` (which also sees what kind of
    text is running), or a policy as the planner's settings name it.

    Fixed lengths are played without a planner: there is nothing for it to do.
    """
    if contender == CLAIRVOYANT:
        return play(scenario, _clairvoyant(scenario), seed)
    if contender == CLAIRVOYANT_BY_TEXT:
        return play(scenario, TextDirector(tuple(map(_clairvoyant, _pure(scenario)))), seed)
    if contender.startswith("static:"):
        return play(scenario, static_plan_of(scenario, int(contender.partition(":")[2])), seed)
    if contender == "off":
        return play(scenario, static_plan_of(scenario, 0), seed)
    return play(scenario, parse(contender), seed)


_PLANS: dict[Scenario, Plan] = {}


def _clairvoyant(scenario: Scenario) -> Plan:
    """Worked out once for all seeds."""
    if scenario not in _PLANS:
        _PLANS[scenario] = clairvoyant_plan(scenario)
    return _PLANS[scenario]


def _pure(scenario: Scenario) -> list[Scenario]:
    """The scenario with all of its text of one domain, for every domain."""
    found = []
    for place in range(len(scenario.domains)):
        mix = tuple(float(place == other) for other in range(len(scenario.domains)))
        stretches = tuple(replace(stretch, mix=mix) for stretch in scenario.stretches)
        found.append(replace(scenario, stretches=stretches))
    return found


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval over repetitions."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | FloatArray) -> Interval:
        """From one value per repetition; a single one has no width."""
        data = np.asarray(values, dtype=np.float64)
        mean = float(data.mean())
        if data.size < 2:
            return cls(mean, mean, mean)
        half = _Z95 * float(data.std(ddof=1)) / data.size**0.5
        return cls(mean, mean - half, mean + half)


def in_parallel(
    function: Callable[..., _Result], jobs: Iterable[tuple[Any, ...]], processes: int
) -> list[_Result]:
    """Results in the order of the jobs, from several processes, or from this one."""
    listed = list(jobs)
    if processes <= 1:
        return [function(*job) for job in listed]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(function, *zip(*listed, strict=True)))
