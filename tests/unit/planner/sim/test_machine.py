"""Costs of simulated rounds: what the table says, padded as a worker pads."""

import json
from pathlib import Path

import numpy as np
import pytest

from outrider_planner.core.hellos import check_hello
from outrider_planner.sim.acceptance import CODE
from outrider_planner.sim.cost_tables import CPU, CostFileError, MachineTable, named, names
from outrider_planner.sim.machine import Machine, TrueCosts
from outrider_planner.sim.runner import hello_for
from outrider_planner.sim.scenarios import steady

EXACT = TrueCosts(noise=0.0)


def machine(name: str, truth: TrueCosts = EXACT) -> Machine:
    return Machine(named(name), 32, 7, truth)


@pytest.mark.parametrize("name", names())
def test_every_table_makes_a_hello_that_the_planner_accepts(name: str) -> None:
    scenario = steady(name, 8, (CODE,))
    check_hello(hello_for(scenario, named(name), 16))


@pytest.mark.parametrize("name", names())
def test_rounds_cost_what_the_table_says(name: str) -> None:
    table = named(name)
    curve = table.table.target[0]
    times = machine(name).times(8, 8, 0, float(curve.context_tokens), np.zeros(4))
    rows = table.row_buckets.index(8)
    assert times.target_s * 1e6 == pytest.approx(curve.median_us[rows], rel=1e-9)
    assert times.draft_s == 0.0
    assert times.measured_s == pytest.approx(times.expected_s)


def test_rows_are_padded_to_a_bucket_on_an_accelerator_only() -> None:
    assert machine("h200_14b").bucket_of[[8, 9, 16, 17]].tolist() == [8, 16, 16, 24]
    assert machine(CPU).bucket_of[[8, 9, 16, 17]].tolist() == [8, 9, 16, 17]


def test_rows_are_nearly_free_below_the_knee_and_dear_above_it_but_not_in_a_mixture() -> None:
    dense, mixture = machine("h200_14b"), machine("h200_moe_30b_a3b")

    def ratio(of: Machine, rows: int) -> float:
        at = of.expected_s(8, np.array([8, rows]), 0, 256.0)
        return float(at[1] / at[0])

    assert ratio(dense, 32) < 1.15
    assert ratio(dense, 256) > 1.4
    assert ratio(mixture, 32) > 1.5


def test_truth_may_differ_from_the_table() -> None:
    plain = machine("h200_14b").times(8, 32, 3, 256.0, np.zeros(4))
    dear = machine("h200_14b", TrueCosts(1.5, 2.0, 0.0)).times(8, 32, 3, 256.0, np.zeros(4))
    assert dear.target_s == pytest.approx(1.5 * plain.target_s)
    assert dear.draft_s == pytest.approx(2.0 * plain.draft_s)
    assert dear.host_s == plain.host_s


def test_a_table_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(as_file(named(CPU))))
    found = named(str(path))
    assert found.table == named(CPU).table
    assert found.row_buckets == named(CPU).row_buckets


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(CostFileError):
        named(str(path))


def test_an_unknown_table_names_those_known() -> None:
    with pytest.raises(CostFileError, match="h200_14b"):
        named("no_such_machine")


def as_file(table: MachineTable) -> dict[str, object]:
    costs = table.table.drafters[0]
    curves = [
        {"context_tokens": c.context_tokens, "rows": c.rows, "median_us": c.median_us}
        for c in table.table.target
    ]
    draft = [
        {
            "context_tokens": g.context_tokens,
            "requests": g.requests,
            "draft_tokens": g.draft_tokens,
            "median_us": g.median_us,
        }
        for g in costs.draft
    ]
    return {
        "name": table.name,
        "row_buckets": table.row_buckets,
        "pads_rows": table.pads_rows,
        "host_us": table.host_us,
        "host_us_per_request": table.host_us_per_request,
        "target": curves,
        "draft": draft,
    }
