"""Played rounds: the same seed the same run, work served exactly, plans obeyed, physics kept."""

from dataclasses import replace

import numpy as np
import pytest

from outrider_planner.core.policies import parse
from outrider_planner.sim.acceptance import CHAT, CODE, Spread
from outrider_planner.sim.baselines import static_plan_of, truth_of
from outrider_planner.sim.contenders import CLAIRVOYANT, run_of
from outrider_planner.sim.plans import PlanTables, fixed_plan
from outrider_planner.sim.runner import Run, play
from outrider_planner.sim.scenarios import Scenario, steady
from outrider_planner.sim.world import Lengths, Stretch

SMALL = steady("h200_14b", 8, (CHAT, CODE), rounds=120, skip_rounds=20)


def fixed_work() -> Scenario:
    stretches = (Stretch(4, 1, (1.0, 0.0)), Stretch(24, 6, (0.5, 0.5)), Stretch(3, 1, (0.0, 1.0)))
    lengths = Lengths(mean_tokens=24.0, least_tokens=4)
    return replace(
        SMALL, stretches=stretches, lengths=lengths, rounds=None, skip_rounds=0, name="work"
    )


@pytest.mark.parametrize("policy", ["two_stage", "lightspec", "static:3", CLAIRVOYANT])
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    first, second = run_of(SMALL, policy, 5), run_of(SMALL, policy, 5)
    assert (first.rounds == second.rounds).all()
    assert not np.array_equal(first.rounds, run_of(SMALL, policy, 6).rounds)


@pytest.mark.parametrize("policy", ["two_stage", "static:3", "off"])
def test_fixed_work_is_served_to_the_last_token(policy: str) -> None:
    run = run_of(fixed_work(), policy, 1)
    emitted = run.column("requests").sum() + run.column("accepted").sum()
    assert emitted == run.request_tokens.sum()
    assert (run.request_busy_s > 0).all()
    assert run.column("requests").max() == 6


def test_every_policy_serves_the_same_requests() -> None:
    runs = [run_of(fixed_work(), name, 2) for name in ("two_stage", "static:0", CLAIRVOYANT)]
    assert all((run.request_tokens == runs[0].request_tokens).all() for run in runs)


def test_conservation_in_every_round() -> None:
    run = play(SMALL, parse("two_stage"), 3)
    n, carried = run.column("requests"), run.column("carried")
    assert (run.column("accepted") <= run.column("verified")).all()
    assert (run.column("verified") <= run.column("pool")).all()
    assert (run.column("pool") <= n * carried).all()
    assert (run.column("expected_tokens") <= n + run.column("verified") + 1e-9).all()


def test_expected_and_realised_acceptance_agree_in_the_long_run() -> None:
    run = run_of(replace(SMALL, rounds=1500), "static:4", 0)
    expected = run.column("expected_tokens").sum() - run.column("requests").sum()
    assert run.column("accepted").sum() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("requests", [1, 16])
@pytest.mark.parametrize("length", [0, 2, 5])
def test_enumeration_and_played_rounds_agree(requests: int, length: int) -> None:
    """The baselines' truth, which never plays a round, against played rounds."""
    scenario = steady(
        "h200_14b",
        requests,
        (CODE,),
        rounds=1600 // requests,
        skip_rounds=1,
        spread=Spread(request=0.0),
        lengths=Lengths(mean_tokens=20.0, prompt_tokens=256, persistent=True),
    )
    assert played(scenario, length) == pytest.approx(expected(scenario, length), rel=0.015)


def test_hard_requests_stay_longer_and_enumeration_knows() -> None:
    """With turnover those that run are harder than those that arrive."""
    scenario = steady(
        "h200_14b",
        32,
        (CODE,),
        rounds=500,
        skip_rounds=150,
        spread=Spread(request=1.5),
    )
    found = played(scenario, 7)
    assert found == pytest.approx(expected(scenario, 7), rel=0.025)
    assert found < 0.95 * expected(replace(scenario, lengths=Lengths(persistent=True)), 7)


def expected(scenario: Scenario, length: int) -> float:
    return float(truth_of(scenario).step(scenario.max_requests).static_rates()[length])


def played(scenario: Scenario, length: int) -> float:
    plan = static_plan_of(scenario, length)
    return float(np.mean([play(scenario, plan, seed).rate() for seed in range(3)]))


def test_a_worker_verifies_the_best_drafts_of_all_requests() -> None:
    """With a budget of half the drafts, picking by score accepts more than breadth-first."""
    maps = truth_of(SMALL).maps[0]
    breadth = np.repeat(maps.mean(axis=1, keepdims=True), maps.shape[1], axis=1)
    rows = [[8 + min(24, 8 * d) for d in range(8)]]
    runs: list[Run] = [
        play(SMALL, fixed_plan((8,), "eagle", [6], rows, [("", survival)]), 0)
        for survival in (maps, breadth)
    ]
    picked, plain = (run.column("expected_tokens")[20:].mean() for run in runs)
    assert (runs[0].column("verified")[20:] <= 24).all()
    assert picked > 1.03 * plain


def test_plans_are_read_as_a_worker_reads_them() -> None:
    plan = fixed_plan((1, 4, 8), "eagle", [5, 3, 0], [[1, 2, 3], [4, 6, 9], [8, 8, 8]])
    tables = PlanTables(plan, "eagle", ("default",), 4)
    assert [tables.draft_tokens(n) for n in (1, 2, 4, 5, 9)] == [4, 3, 3, 0, 0]
    # Two of five drafts of the step for 4, rounded up, for the 2 that run.
    assert [tables.verify_tokens(2, carried) for carried in (0, 1, 2, 4)] == [0, 1, 3, 3]


def test_a_warm_worker_starts_where_a_cold_one_arrives() -> None:
    warm = play(replace(SMALL, rounds=60), parse("two_stage"), 1)
    cold = play(replace(SMALL, rounds=60, warm=False), parse("two_stage"), 1)
    assert warm.rate(5, 40) >= 0.99 * cold.rate(5, 40)
