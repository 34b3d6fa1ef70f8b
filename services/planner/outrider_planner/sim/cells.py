"""Steady loads: every contender on every cell of (machine, text, n), with the same requests.

Knows which cells there are and what is measured of each. Does not know targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outrider_planner.core.types import FloatArray
from outrider_planner.sim.acceptance import CHAT, CODE, MATH, Domain
from outrider_planner.sim.baselines import likely_best_lengths
from outrider_planner.sim.contenders import CLAIRVOYANT, OFF, in_parallel, run_of
from outrider_planner.sim.scenarios import Scenario, steady
from outrider_planner.sim.world import Lengths

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MACHINES = ("h200_8b", "h200_14b", "h200_moe_30b_a3b")
TEXTS: Mapping[str, Domain] = {"chat": CHAT, "code": CODE, "math": MATH}
# At least so many are measured, and so many request-rounds: few requests differ more.
MEASURED_ROUNDS, MEASURED_REQUEST_ROUNDS, SKIPPED = 200, 2000, 100
# Where regret is measured: in these rounds after a start from nothing.
LEARNED_AFTER, LEARNED_UNTIL = 200, 300
COLD = "two_stage cold"
_ALWAYS = ("two_stage", "lightspec", CLAIRVOYANT)


@dataclass(frozen=True, slots=True)
class Cell:
    """One steady load."""

    machine: str
    text: str
    requests: int

    def scenario(self, warm: bool = True) -> Scenario:
        """As it is played."""
        return steady(
            self.machine,
            self.requests,
            (TEXTS[self.text],),
            rounds=SKIPPED + max(MEASURED_ROUNDS, MEASURED_REQUEST_ROUNDS // self.requests),
            skip_rounds=SKIPPED,
            warm=warm,
            lengths=Lengths(persistent=True),
        )


@dataclass(frozen=True, slots=True, eq=False)
class CellResult:
    """Rates by contender, one per seed. ``late``: over the rounds in which regret is measured."""

    cell: Cell
    rates: Mapping[str, FloatArray]
    late: Mapping[str, FloatArray]

    def best_static(self) -> str:
        """The fixed length that is best in hindsight over all seeds, off among them."""
        names = [name for name in self.rates if name.startswith("static:")]
        return max(names, key=lambda name: float(self.rates[name].mean()))

    def ratio(self, contender: str, against: str) -> FloatArray:
        """By seed."""
        result: FloatArray = self.rates[contender] / self.rates[against]
        return result

    def regret(self) -> FloatArray:
        """What a start from nothing still loses to the clairvoyant, by seed."""
        result: FloatArray = 1.0 - self.late[COLD] / self.late[CLAIRVOYANT]
        return result

    def row(self) -> dict[str, Any]:
        """For the report's table: rates relative to the best fixed length."""
        best = self.best_static()
        return {
            "machine": self.cell.machine,
            "text": self.cell.text,
            "requests": self.cell.requests,
            "best_static": best,
            **{
                name: round(float(self.ratio(name, best).mean()), 4)
                for name in (*_ALWAYS, COLD, OFF)
            },
            "regret": round(float(self.regret().mean()), 4),
        }


def grid() -> tuple[Cell, ...]:
    """All cells."""
    return tuple(Cell(machine, text, n) for machine in MACHINES for text in TEXTS for n in LOADS)


def evaluate(cells: Sequence[Cell], seeds: int, processes: int) -> list[CellResult]:
    """All contenders on all cells; the dearest cells first, so that no process ends alone."""
    order = sorted(range(len(cells)), key=lambda i: -cells[i].requests)
    found = in_parallel(_evaluate, [(cells[i], seeds) for i in order], processes)
    by_place = dict(zip(order, found, strict=True))
    return [by_place[i] for i in range(len(cells))]


def _evaluate(cell: Cell, seeds: int) -> CellResult:
    warm, cold = cell.scenario(), cell.scenario(warm=False)
    statics = {OFF, *(f"static:{k}" for k in likely_best_lengths(warm, 2))}
    runs = {
        **{name: (warm, name) for name in (*_ALWAYS, *sorted(statics))},
        COLD: (replace(cold, skip_rounds=LEARNED_AFTER, rounds=LEARNED_UNTIL), "two_stage"),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    late: dict[str, list[float]] = {COLD: [], CLAIRVOYANT: []}
    # Without drafts nothing is left to chance: a few rounds say all.
    runs[OFF] = (replace(warm, rounds=SKIPPED + 10), OFF)
    for seed in range(seeds):
        for name, (scenario, contender) in runs.items():
            run = run_of(scenario, contender, seed)
            rates[name].append(run.rate())
            if name in late:
                late[name].append(run.rate(LEARNED_AFTER, LEARNED_UNTIL))
    return CellResult(
        cell,
        {name: np.array(values) for name, values in rates.items()},
        {name: np.array(values) for name, values in late.items()},
    )
