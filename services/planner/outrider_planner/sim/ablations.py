"""What each mechanism earns: the same scenarios with one thing taken away.

Knows how a mechanism is taken away from outside (by what the worker shows, how the planner is
asked, or a constant set to what disables it), so that the core needs no switches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from types import ModuleType
from typing import Any

import numpy as np

from outrider_planner.core import calibration, cost, drift, explore, search
from outrider_planner.core.policies import two_stage
from outrider_planner.sim.acceptance import CHAT, CODE, ESSAY, MATH
from outrider_planner.sim.contenders import in_parallel, run_of
from outrider_planner.sim.machine import TrueCosts
from outrider_planner.sim.scenarios import (
    NAMED,
    Scenario,
    dip,
    lookups,
    mixed,
    steady,
    switch,
)
from outrider_planner.sim.worker import Shift
from outrider_planner.sim.world import Lengths

_OURS = "two_stage"


@dataclass(frozen=True, slots=True)
class Disabled:
    """Something of the core as it is without the mechanism."""

    owner: ModuleType | type
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Ablation:
    """``scenario`` with the mechanism; without it, another scenario or policy, or ``off``."""

    mechanism: str
    scenario: Scenario
    without: Scenario | None = None
    policy: str = _OURS
    off: Disabled | None = None


def ablation_rows(seeds: int, processes: int) -> list[dict[str, object]]:
    """One row per mechanism: rate and number of plans without it relative to those with it."""
    listed = _ablations()
    jobs = [
        (each.scenario if whole else each.without or each.scenario,
         _OURS if whole else each.policy, seed, None if whole else each.off)
        for each in listed
        for whole in (True, False)
        for seed in range(seeds)
    ]  # fmt: skip
    found = np.array(in_parallel(_played, jobs, processes)).reshape(len(listed), 2, seeds, 2)
    rows = []
    for each, (whole, without) in zip(listed, found, strict=True):
        ratio = without / whole
        rows.append(
            {
                "mechanism": each.mechanism,
                "scenario": each.scenario.name,
                "rate without / with": round(float(ratio[:, 0].mean()), 4),
                "spread": round(float(ratio[:, 0].std()), 4),
                "plans without / with": round(float(ratio[:, 1].mean()), 2),
            }
        )
    return rows


def _ablations() -> list[Ablation]:
    return [*_of_statistics(), *_of_decisions()]


def _of_statistics() -> list[Ablation]:
    batch = mixed(requests=96)
    blind = replace(batch, spread=replace(batch.spread, score_noise=None))
    lying = replace(batch, spread=replace(batch.spread, score_noise=inf))
    cold = steady("h200_14b", 1, (CHAT,), rounds=150, skip_rounds=0, name="cold start n=1")
    late = replace(switch(requests=16), skip_rounds=300, rounds=450)
    # A mixture whose drafter shares its device with others.
    misread = steady(
        "h200_moe_30b_a3b",
        8,
        (CHAT,),
        name="drafter four times as dear:h200_moe_30b_a3b:n=8",
        truth=TrueCosts(draft_factor=4.0),
    )
    return [
        Ablation("scores of drafts", batch, blind),
        Ablation("scores that mean something", batch, lying),
        Ablation(
            "flat curves where scores mean nothing",
            lying,
            off=Disabled(calibration, "_USELESS_BELOW", -inf),
        ),
        Ablation("fleet statistics at the start", cold, replace(cold, warm=False)),
        Ablation("classes, without scores", replace(blind, labelled=True), blind),
        Ablation("drift test", late, off=Disabled(drift, "THRESHOLD", inf)),
        Ablation(
            "reports every 250 ms, not every second", late, replace(late, report_interval_ms=1000)
        ),
        Ablation(
            "correction of costs",
            misread,
            off=Disabled(cost.CostTracker, "observe", lambda self, *rounds: None),
        ),
    ]


def _of_decisions() -> list[Ablation]:
    light = steady("h200_moe_30b_a3b", 8, (CODE,))
    edit = lookups()
    easier = steady(
        "h200_14b",
        4,
        (ESSAY, MATH),
        name="switch:h200_14b:n=4:essay to math",
        shifts=(Shift(0, domain=0), Shift(300, domain=1)),
        lengths=Lengths(persistent=True),
        rounds=700,
        skip_rounds=300,
    )
    back = replace(dip("h200_14b", 96), rounds=900)
    return [
        Ablation("verify budget apart from draft length", mixed(requests=96), policy="dspark"),
        Ablation("planning at all, light load", light, policy="static:3"),
        Ablation("expectation over sparse pools", edit, replace(edit, claims_dense=True)),
        Ablation("now and then one draft more", easier, off=Disabled(explore, "MOST_SPANS", 0)),
        Ablation("probes while off", back, off=Disabled(two_stage, "PROBE_COST_RATIO", 1e-12)),
        Ablation(
            "margin for a new plan",
            NAMED["steady-chat"](),
            off=Disabled(search, "REPLACEMENT_MARGIN", 0.0),
        ),
    ]


def _played(
    scenario: Scenario, policy: str, seed: int, off: Disabled | None
) -> tuple[float, float]:
    """(tokens per second, plans)"""
    with _without(off):
        run = run_of(scenario, policy, seed)
    return run.rate(), float(run.plans)


@contextmanager
def _without(off: Disabled | None) -> Iterator[None]:
    """The core with something disabled, for as long as the context lasts."""
    if off is None:
        yield
        return
    kept = getattr(off.owner, off.name)
    setattr(off.owner, off.name, off.value)
    try:
        yield
    finally:
        setattr(off.owner, off.name, kept)
