"""What each mechanism earns: the same scenarios with one thing taken away.

Knows how a mechanism is taken away from outside (by what the worker shows or how the planner is
asked), so that the core needs no switches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider_planner.sim.acceptance import CHAT, CODE
from outrider_planner.sim.contenders import in_parallel, run_of
from outrider_planner.sim.scenarios import Scenario, lookups, mixed, steady, switch

_Pair = tuple[str, Scenario, str, Scenario, str]


def ablation_rows(seeds: int, processes: int) -> list[dict[str, object]]:
    """One row per mechanism: the rate without it relative to that with it."""
    pairs = _pairs()
    jobs = [
        (scenario, policy, seed)
        for _, with_, with_policy, without, without_policy in pairs
        for scenario, policy in ((with_, with_policy), (without, without_policy))
        for seed in range(seeds)
    ]
    rates = np.array(in_parallel(_rate, jobs, processes)).reshape(len(pairs), 2, seeds)
    return [
        {
            "mechanism": name,
            "scenario": scenario.name,
            "without / with": round(float((rates[i, 1] / rates[i, 0]).mean()), 4),
            "spread": round(float((rates[i, 1] / rates[i, 0]).std()), 4),
        }
        for i, (name, scenario, *_) in enumerate(pairs)
    ]


def _pairs() -> list[_Pair]:
    batch = mixed(requests=96)
    cold = steady("h200_14b", 1, (CHAT,), rounds=150, skip_rounds=0, name="cold start n=1")
    late = replace(switch(requests=16), skip_rounds=300, rounds=450)
    light = steady("h200_moe_30b_a3b", 8, (CODE,))
    edit = lookups()
    blind = replace(batch, spread=replace(batch.spread, score_noise=None))
    lying = replace(batch, spread=replace(batch.spread, score_noise=float("inf")))
    ours = "two_stage"
    return [
        ("scores of drafts", batch, ours, blind, ours),
        ("scores that mean something", batch, ours, lying, ours),
        ("verify budget apart from draft length", batch, ours, batch, "dspark"),
        ("fleet statistics at the start", cold, ours, replace(cold, warm=False), ours),
        ("classes", replace(batch, labelled=True), ours, batch, ours),
        (
            "reports every 250 ms, not every second",
            late,
            ours,
            replace(late, report_interval_ms=1000),
            ours,
        ),
        ("planning at all, light load", light, ours, light, "static:3"),
        ("expectation over sparse pools", edit, ours, replace(edit, claims_dense=True), ours),
    ]


def _rate(scenario: Scenario, policy: str, seed: int) -> float:
    return run_of(scenario, policy, seed).rate()
