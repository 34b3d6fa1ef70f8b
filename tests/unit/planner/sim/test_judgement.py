"""What is claimed of runs: a short form of the suite, the report, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider_cli.main import app
from outrider_planner.sim import cells, report
from outrider_planner.sim.acceptance import CODE
from outrider_planner.sim.baselines import clairvoyant_plan, truth_of
from outrider_planner.sim.claims import Claim
from outrider_planner.sim.contenders import CLAIRVOYANT, Interval, run_of
from outrider_planner.sim.scenarios import NAMED, mixed, steady
from outrider_planner.sim.targets import steady_claims


def test_the_short_suite_near_the_best_fixed_length_and_never_below_off() -> None:
    grid = [cells.Cell("h200_14b", "code", n) for n in (2, 64)]
    results = cells.evaluate(grid, seeds=2, processes=1)
    claims = {claim.claim: claim for claim in steady_claims(results)}
    assert claims["best static K in hindsight, worst steady cell"].value > 0.97
    assert claims["off, worst steady cell"].met
    for result in results:
        reached = result.ratio(CLAIRVOYANT, result.best_static()).mean()
        assert reached > 0.98
        assert set(result.row()) >= {"machine", "requests", "regret"}


def test_the_clairvoyant_is_not_beaten_by_a_fixed_length() -> None:
    scenario = replace(mixed(requests=64), rounds=150, skip_rounds=30)
    rates = {
        name: np.mean([run_of(scenario, name, seed).rate() for seed in range(2)])
        for name in (CLAIRVOYANT, "static:1", "static:2", "static:3", "off")
    }
    assert rates[CLAIRVOYANT] == max(rates.values())


def test_both_stages_of_the_clairvoyant_agree_with_plain_enumeration() -> None:
    scenario = steady("h200_moe_30b_a3b", 4, (CODE,))
    step = truth_of(scenario).step(4)
    length, verify = step.plan()
    rates = step.rates()
    best = np.unravel_index(int(rates.argmax()), rates.shape)
    assert length == int(best[0])
    assert int(verify[length]) == int(step.verify[best[1]])
    assert clairvoyant_plan(scenario).drafters[0].draft_tokens[-1] == length


def test_intervals_hold_the_mean_and_shrink_with_repetitions() -> None:
    few, many = Interval.of([0.9, 1.1]), Interval.of([0.9, 1.1] * 50)
    assert few.value == pytest.approx(1.0)
    assert few.low < 1.0 < few.high
    assert many.high - many.low < few.high - few.low
    assert Interval.of([0.7]) == Interval(0.7, 0.7, 0.7)


def test_claims_are_met_by_their_mean_and_say_so(tmp_path: Path) -> None:
    claims = [Claim("fast", 1.0, 1.1, 1.0, 1.2), Claim("tax", 0.01, 0.02, 0.0, 0.1, at_most=True)]
    report.write_json(tmp_path / "out.json", claims)
    written = json.loads((tmp_path / "out.json").read_text())
    assert [item["met"] for item in written] == [True, False]
    assert {"claim", "target", "value", "low", "high", "met"} <= set(written[0])
    assert report.claim_lines(claims).splitlines()[1].startswith("MISSED tax")
    single = report.claim_lines([Claim("fast", 1.0, 1.1, 1.1, 1.1)])
    assert single == "met    fast: 1.1000, target ≥ 1", "one repetition has no interval"


def test_the_command_plays_a_scenario_and_leaves_table_json_and_plot(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["simulate", "steady-code", "--requests", "2", "--repetitions", "1"]
    arguments += ["--policy", "two_stage", "--policy", "off", "--policy", "clairvoyant"]
    arguments += ["--json", str(out), "--plots", str(tmp_path / "plots"), "--processes", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert ", 1 repetition\n" in result.output
    assert "±" not in result.output
    (found,) = json.loads(out.read_text())
    rates = {row["policy"]: row["tokens_per_s"] for row in found["policies"]}
    assert rates["two_stage"] > 1.5 * rates["off"]
    (plot,) = (tmp_path / "plots").glob("*.svg")
    text = plot.read_text()
    assert text.count("<polyline") >= 9
    assert "regret to the clairvoyant" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "unknown scenario"),
        (["--suite", "others"], "unknown suite"),
        (["ramp", "--requests", "4"], "sets its own load"),
        (["steady-code", "--machine", "no_such"], "no cost table"),
        (["steady-code", "--policy", "magic", "--processes", "1"], "unknown policy"),
    ],
)
def test_mistakes_are_named(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert words in result.output


def test_without_a_name_the_scenarios_are_listed_with_what_they_are() -> None:
    result = CliRunner().invoke(app, ["simulate"])
    assert result.exit_code == 0
    told = dict(line.split(maxsplit=1) for line in result.output.splitlines() if line[:2] == "  ")
    assert list(told) == [*NAMED, "--suite"]
    assert len(set(told.values())) == len(told)


def test_every_named_scenario_can_be_made() -> None:
    made = [make() for make in NAMED.values()]
    assert all(scenario.max_requests >= 1 for scenario in made)
