"""The claims that the simulator must bear out: each with its target, its value and its interval.

Knows how a claim is measured from runs. Does not know how runs are spread over processes, nor how
claims are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider_planner.core.types import FloatArray
from outrider_planner.sim.baselines import frozen_at, likely_best_lengths
from outrider_planner.sim.cells import CellResult
from outrider_planner.sim.claims import Claim, claim_of
from outrider_planner.sim.contenders import (
    CLAIRVOYANT,
    CLAIRVOYANT_BY_TEXT,
    OFF,
    in_parallel,
    run_of,
)
from outrider_planner.sim.cost_tables import CPU
from outrider_planner.sim.scenarios import (
    INFORMATIVE,
    PERFECT,
    Scenario,
    arrivals,
    churn,
    dip,
    mixed,
    ramp,
    switch,
)

# Rounds after a shift within which a policy must be back, and those it is then measured over.
RECOVERY_ROUNDS, JUDGED_ROUNDS = 50, 100
_LIGHT_LOAD = 16


# Steady loads -------------------------------------------------------------------------------


def steady_claims(results: Sequence[CellResult]) -> list[Claim]:
    """Everything that is said of every cell, and of their mean."""
    by_static = [item.ratio("two_stage", item.best_static()) for item in results]
    light = [
        ratio
        for item, ratio in zip(results, by_static, strict=True)
        if item.cell.requests <= _LIGHT_LOAD
    ]
    regrets = np.stack([item.regret() for item in results])
    learned = [item.ratio("two_stage", "lightspec") for item in results]
    off = [item.ratio("two_stage", OFF) for item in results]
    return [
        _worst("best static K in hindsight, worst steady cell", 0.99, results, by_static),
        claim_of(
            "best static K in hindsight, mean of steady cells",
            1.01,
            np.stack(by_static).mean(axis=0),
            note=_reached(results),
        ),
        _worst("off, worst steady cell", 0.99, results, off),
        _worst("literal lightspec, worst steady cell", 0.995, results, learned),
        claim_of(
            "tax at n ≤ 16 against best static, mean",
            0.01,
            1.0 - np.stack(light).mean(axis=0),
            at_most=True,
        ),
        claim_of(
            "regret to the clairvoyant after 200 rounds from nothing, mean",
            0.02,
            regrets.mean(axis=0),
            at_most=True,
            note=_worst_regret(results),
        ),
    ]


def _worst(
    text: str, target: float, results: Sequence[CellResult], ratios: Sequence[FloatArray]
) -> Claim:
    place = int(np.argmin([float(ratio.mean()) for ratio in ratios]))
    cell = results[place].cell
    reached = float(results[place].ratio(CLAIRVOYANT, results[place].best_static()).mean())
    note = f"{cell.machine}, {cell.text}, n={cell.requests}; clairvoyant / static {reached:.3f}"
    return claim_of(text, target, ratios[place], note=note)


def _reached(results: Sequence[CellResult]) -> str:
    reached = [float(r.ratio(CLAIRVOYANT, r.best_static()).mean()) for r in results]
    return f"the clairvoyant reaches {np.mean(reached):.4f}"


def _worst_regret(results: Sequence[CellResult]) -> str:
    worst = max(results, key=lambda item: float(item.regret().mean()))
    cell, regret = worst.cell, float(worst.regret().mean())
    return f"worst {regret:.3f} at {cell.machine}, {cell.text}, n={cell.requests}"


# Scores -------------------------------------------------------------------------------------


def score_claims(seeds: int, processes: int) -> list[Claim]:
    """What picking by scores gains over the best fixed length, at n = 64, 96, 128."""
    found = []
    for spread, target, text in (
        (INFORMATIVE, 1.05, "informative scores (AUC 0.85), n = 64–128, 14B, against best static"),
        (PERFECT, 1.08, "perfect scores, n = 64–128, 14B, against best static"),
    ):
        scenarios = [
            replace(mixed("h200_14b", n, spread), rounds=400, skip_rounds=100)
            for n in (64, 96, 128)
        ]
        ours = np.stack([against_static(s, seeds, processes) for s in scenarios])
        best = np.stack([against_static(s, seeds, processes, CLAIRVOYANT) for s in scenarios])
        note = f"clairvoyant {best.mean():.3f}; by n: {_listed(ours.mean(axis=1))}"
        found.append(claim_of(text, target, ours.mean(axis=0), note=note))
    return found


def against_static(
    scenario: Scenario, seeds: int, processes: int, contender: str = "two_stage"
) -> FloatArray:
    """Rate relative to the fixed length that is best over all seeds, by seed."""
    names = sorted({OFF, *(f"static:{k}" for k in likely_best_lengths(scenario, 3))})
    statics = {name: rates(scenario, name, seeds, processes) for name in names}
    best = max(statics.values(), key=lambda values: float(values.mean()))
    return rates(scenario, contender, seeds, processes) / best


def rates(
    scenario: Scenario, contender: str, seeds: int, processes: int, last: int | None = None
) -> FloatArray:
    """Tokens per second over the measured rounds, by seed."""
    jobs = [(scenario, contender, seed, last) for seed in range(seeds)]
    return np.array(in_parallel(_rate, jobs, processes))


def _rate(scenario: Scenario, contender: str, seed: int, last: int | None) -> float:
    return run_of(scenario, contender, seed).rate(last=last)


# Fixed work ---------------------------------------------------------------------------------


def ramp_claims(seeds: int, processes: int) -> list[Claim]:
    """Load 1 → 256 → 1 as fixed work: each metric against the fixed length best on it.

    Where concurrency follows the work, speed is device time; where arrivals come from outside,
    the device is busy whatever the policy, and speed is what each request sees. Both are listed.
    """
    return [
        *_work_claims("ramp 1 → 256 → 1", ramp(), seeds, processes),
        *_work_claims("arrivals for 1 → 256 → 1", arrivals(), seeds, processes),
    ]


def _work_claims(text: str, scenario: Scenario, seeds: int, processes: int) -> list[Claim]:
    lengths = range(4)
    contenders = ["two_stage", CLAIRVOYANT_BY_TEXT, *(f"static:{k}" for k in lengths)]
    jobs = [(scenario, name, seed) for name in contenders for seed in range(seeds)]
    found = np.array(in_parallel(_work, jobs, processes)).reshape(len(contenders), seeds, 2)
    claims = []
    for metric, name in enumerate(("device-busy time", "mean time per output token")):
        means = found[2:, :, metric].mean(axis=1)
        best = found[2 + int(means.argmin()), :, metric]
        reached = float((best / found[1, :, metric]).mean())
        note = (
            f"best static K = {lengths[int(means.argmin())]}; by K, relative to it: "
            f"{_listed(means / means.min())}; the clairvoyant, who sees the text, reaches "
            f"{reached:.3f}"
        )
        ratio = best / found[0, :, metric]
        claims.append(claim_of(f"{text}, {name}, best static / ours", 1.12, ratio, note=note))
    return claims


def _work(scenario: Scenario, contender: str, seed: int) -> tuple[float, float]:
    run = run_of(scenario, contender, seed)
    return run.busy_s, run.token_s


# Shifts, dips, churn ------------------------------------------------------------------------


def recovery_claims(seeds: int, processes: int) -> list[Claim]:
    """After the text changed: back to what the clairvoyant has in the new world, in time."""
    kept: list[tuple[str, FloatArray]] = []
    for n in (1, 2, 8, 32, 128):
        for back in (False, True):
            wait = max(RECOVERY_ROUNDS, -(-400 // n))
            changed = switch(requests=n, back=back)
            first = changed.shifts[-1].first_round + wait
            judged = replace(changed, skip_rounds=first, rounds=first + JUDGED_ROUNDS)
            known = replace(frozen_at(judged, first), warm=True)
            ours = rates(judged, "two_stage", seeds, processes)
            best = rates(known, CLAIRVOYANT, seeds, processes)
            kept.append((f"n={n} {'to code' if back else 'to chat'}", ours / best))
    worst = min(kept, key=lambda item: float(item[1].mean()))
    note = f"worst: {worst[0]}; " + ", ".join(f"{k} {float(v.mean()):.3f}" for k, v in kept)
    text = "clairvoyant's rate reached after a shift, in 50 rounds or 400 request-rounds, worst"
    return [claim_of(text, 0.95, worst[1], note=note)]


def lightspec_claims(seeds: int, processes: int) -> list[Claim]:
    """Where the published planner fails: it stays off after a dip and starves under churn."""
    dips = [dip(machine, n) for machine, n in (("h200_moe_30b_a3b", 8), (CPU, 4), ("h200_14b", 96))]
    churns = [churn(requests=n) for n in (64, 128, 256)]
    return [
        _against_lightspec("after an acceptance dip", dips, seeds, processes),
        _against_lightspec("under churn", churns, seeds, processes),
    ]


def _against_lightspec(
    text: str, scenarios: Sequence[Scenario], seeds: int, processes: int
) -> Claim:
    ratios = np.stack(
        [
            rates(s, "two_stage", seeds, processes) / rates(s, "lightspec", seeds, processes)
            for s in scenarios
        ]
    )
    each = zip(scenarios, ratios.mean(axis=1), strict=True)
    note = ", ".join(f"{scenario.name} {ratio:.3f}" for scenario, ratio in each)
    return claim_of(f"literal lightspec {text}, mean", 1.3, ratios.mean(axis=0), note=note)


def _listed(values: FloatArray) -> str:
    return ", ".join(f"{float(value):.3f}" for value in values)
