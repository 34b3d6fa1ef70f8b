"""The targets suite: every claim of the planner, from fixed seeds, with intervals.

Knows the order and the size of the suite. `evaluate` is what `outrider simulate --suite targets`
runs; a short form of it runs with the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outrider_planner.sim import cells
from outrider_planner.sim.ablations import ablation_rows
from outrider_planner.sim.claims import Claim
from outrider_planner.sim.published import published_claims
from outrider_planner.sim.targets import (
    lightspec_claims,
    ramp_claims,
    recovery_claims,
    score_claims,
    steady_claims,
)

REPETITIONS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Claims, and the tables behind them by title."""

    claims: tuple[Claim, ...]
    tables: Mapping[str, list[dict[str, object]]]


def evaluate(
    repetitions: int = REPETITIONS,
    processes: int = 2,
    grid: tuple[cells.Cell, ...] | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """All claims. ``grid``: the steady cells, all of them by default."""
    say("steady loads")
    results = cells.evaluate(grid or cells.grid(), repetitions, processes)
    claims = steady_claims(results)
    for title, part in (
        ("scores", score_claims),
        ("fixed work", ramp_claims),
        ("published experiment", published_claims),
        ("shifts", recovery_claims),
        ("dips and churn", lightspec_claims),
    ):
        say(title)
        claims += part(repetitions, processes)
    say("ablations")
    tables = {
        "steady loads": [result.row() for result in results],
        "ablations": ablation_rows(repetitions, processes),
    }
    return Outcome(tuple(claims), tables)
