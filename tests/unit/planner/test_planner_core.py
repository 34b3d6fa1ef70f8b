"""The core's events: versions, pushes, caps, flushes, and what never changes a plan."""

from dataclasses import replace
from typing import Any

import pytest

from outrider_planner.core.events import (
    FlushDeltas,
    ForgetScope,
    ForgetWorker,
    HoldPlan,
    PlannerConfig,
    ReadScope,
)
from outrider_planner.core.hellos import CapacityError
from outrider_planner.core.planner import Planner, scopes
from outrider_planner.core.policies import Decision, parse
from outrider_planner.core.types import GuardState, Hello, Plan, StepReports
from tests.unit.planner.builders import make_cell, make_hello, make_report, make_rounds, plans
from tests.unit.planner.joined import BAD, GOOD, HELLO, flushed, joined, told


def test_a_hello_is_answered_with_a_plan_at_once() -> None:
    planner, plan = joined()
    assert plan.version == 1
    assert plan.requests_ladder == (1, 2, 3, 4, 6, 8)
    assert (plan.policy, plan.validity_ms, plan.grace_ms) == ("two_stage", 5000, 5000)
    assert plan.score_maps[0].drafter == "ngram"
    assert len(plan.score_maps[0].survival) == 4
    assert planner.workers["worker-1"].connected


def test_news_change_the_plan_and_versions_grow() -> None:
    planner, first = joined()
    seen = [first]
    for step in range(1, 60):
        cell = GOOD if step < 20 else BAD
        seen += told(planner, make_report(step, make_rounds(8), cell), step * 0.25)
    versions = [plan.version for plan in seen]
    assert versions == sorted(set(versions))
    assert len(versions) > 2
    assert max(seen[1].drafters[0].draft_tokens) > 0
    assert seen[-1].drafters[0].draft_tokens == (0,) * 6


def test_the_same_news_push_nothing_more() -> None:
    planner, _ = joined()
    for step in range(1, 200):
        pushed = told(planner, make_report(step, make_rounds(8), GOOD), step * 0.25)
    assert pushed == []
    assert planner.replan(1e3) == []


@pytest.mark.parametrize(
    ("reason", "report"),
    [
        ("duplicate", make_report(1, make_rounds(8), BAD)),
        ("too_many_rounds", make_report(2, make_rounds(20_000), BAD)),
        ("impossible_cell", make_report(2, make_rounds(0), make_cell((8,), (9,), (1,)))),
        ("impossible_round", make_report(2, make_rounds(4, requests=0))),
        ("time_out_of_range", make_report(2, make_rounds(1, carried=0, target_us=1))),
        ("not_finite", make_report(2, make_rounds(0), guard=GuardState(sigma_tokens=float("nan")))),
        ("unknown_drafter", make_report(2, make_rounds(0), make_cell(drafter="eagle"))),
    ],
)
def test_bad_reports_are_counted_and_the_last_plan_holds(reason: str, report: StepReports) -> None:
    """F19: unknown is not zero."""
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(64), GOOD), 1.0)
    worker = planner.workers["worker-1"]
    worker.credit_s = 1.0
    before, known = worker.plan, worker.fast["ngram", "greedy"].grid.copy()
    outcome = planner.on_reports("worker-1", 1, report, 1.1)
    assert outcome.rejected[reason] >= 1
    assert plans(planner.replan(1.1)) == []
    assert worker.plan == before
    assert (worker.fast["ngram", "greedy"].grid == known).all()
    assert worker.rejected[reason] >= 1


def test_silence_and_idleness_hold_the_plan() -> None:
    """F19: statistics missing for a day, or truly idle, push nothing and forget nothing."""
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(64), GOOD), 1.0)
    worker = planner.workers["worker-1"]
    plan = worker.plan
    planner.on_tick(86_400.0)
    assert plans(planner.replan(86_400.0)) == []
    assert told(planner, make_report(2, make_rounds(0)), 86_401.0) == []
    assert worker.present_requests == 0
    assert worker.plan == plan


def test_rounds_never_outrun_the_clock_and_a_backlog_may_catch_up() -> None:
    """Physics holds over all reports together; what waited in the ring is not lost."""
    planner, _ = joined()
    reasons: list[int] = []
    # The fastest possible round of this table takes 2.2 ms: 60 s hold some 27,000.
    for sequence in range(1, 11):
        report = make_report(sequence, make_rounds(5000, carried=0))
        outcome = planner.on_reports("worker-1", 1, report, 0.001 * sequence)
        reasons.append(outcome.rejected["too_many_rounds"])
    assert reasons == [0] * 5 + [1] * 5
    outcome = planner.on_reports("worker-1", 1, make_report(20, make_rounds(5000, carried=0)), 12.0)
    assert not outcome.rejected


def test_a_policy_that_returns_nan_holds_the_plan() -> None:
    class Broken:
        name = "broken"

        def decide(self, *arguments: Any) -> Decision:
            decision = parse("static:2").decide(*arguments)
            (drafter,) = decision.drafters
            return replace(decision, drafters=(replace(drafter, rate=drafter.rate + float("nan")),))

    planner, _ = joined()
    before = planner.workers["worker-1"].plan
    planner.settings.default = replace(planner.settings.default, policy=Broken())
    planner.workers["worker-1"].dirty = True
    (held,) = planner.replan(1.0)
    assert isinstance(held, HoldPlan)
    assert (held.incarnation, held.reason) == ("worker-1", "not_finite")
    assert planner.workers["worker-1"].plan == before


def test_reports_on_an_older_stream_do_not_count() -> None:
    planner, _ = joined()
    planner.on_hello(HELLO, 2, 1.0)
    outcome = planner.on_reports("worker-1", 1, make_report(1), 1.1)
    assert outcome.rejected == {"unknown_stream": 1}
    planner.on_gone("worker-1", 1, 1.2)
    assert planner.workers["worker-1"].connected


def test_a_reconnect_keeps_what_was_learned_and_gets_a_plan_at_once() -> None:
    planner, _ = joined()
    for step in range(1, 30):
        told(planner, make_report(step, make_rounds(8), BAD), step * 0.25)
    planner.on_gone("worker-1", 1, 10.0)
    planner.on_hello(HELLO, 2, 12.0)
    (plan,) = plans(planner.replan(12.0))
    assert plan.drafters[0].draft_tokens == (0,) * 6
    assert told(planner, make_report(29, make_rounds(8), GOOD), 12.5, stream=2) == []
    assert planner.workers["worker-1"].rejected["duplicate"] == 1


def test_a_planner_started_with_its_clock_set_back_plans_at_once() -> None:
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(8), GOOD), 5000.0)
    younger = Planner(PlannerConfig())
    younger.on_hello(HELLO, 1, -100.0)
    (plan,) = plans(younger.replan(-100.0))
    assert plan.version == 1
    later = told(younger, make_report(57, make_rounds(64), BAD), -90.0)
    assert [p.version for p in later] == [2]


def test_capacity_is_bounded_in_words() -> None:
    planner = Planner(PlannerConfig(max_deployments=1, max_workers=2))
    planner.on_hello(make_hello(incarnation="a"), 1, 0.0)
    planner.on_hello(make_hello(incarnation="b"), 2, 0.0)
    with pytest.raises(CapacityError, match="2 workers"):
        planner.on_hello(make_hello(incarnation="c"), 3, 0.0)
    with pytest.raises(CapacityError, match="1 deployments"):
        planner.on_hello(make_hello(incarnation="d", deployment="other"), 4, 0.0)
    planner.on_hello(make_hello(incarnation="a"), 5, 0.0)


def test_workers_that_left_are_forgotten_after_their_sums_were_flushed() -> None:
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(8), GOOD), 0.5)
    planner.on_gone("worker-1", 1, 1.0)
    effects = planner.on_tick(100.0)
    assert any(isinstance(effect, FlushDeltas) for effect in effects)
    planner.on_store_snapshot(scopes(HELLO)[0], [])
    gone = planner.on_tick(101.0)
    assert planner.workers == {}
    assert ForgetWorker("worker-1") in gone
    assert ForgetScope(scopes(HELLO)[0]) in gone


def test_classes_are_capped_per_deployment() -> None:
    planner, _ = joined(PlannerConfig(max_classes=3))
    for step in range(1, 8):
        cell = make_cell(request_class=f"class-{step}")
        told(planner, make_report(step, make_rounds(8), cell), float(step))
    labels = {label for _, label in planner.workers["worker-1"].fast}
    assert labels == {"class-1", "class-2", "other"}


def test_flushed_sums_are_whole_and_leave_once() -> None:
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(8), GOOD), 0.5)
    own, fleet = scopes(HELLO)
    sums = flushed(planner)
    assert sums[own]["ngram|greedy|0|accepted|1|0"] == 14
    assert sums[own]["ngram|greedy|0|asked|0|0"] == 16
    assert sums[fleet]["ngram|*|0|accepted|1|0"] == 14
    assert flushed(planner) == {}


def test_a_worker_s_own_word_on_dropped_rounds_cannot_flood_the_store() -> None:
    planner, _ = joined()
    flood = make_cell((2**62,), (2**62,), (2**62,))
    outcome = planner.on_reports(
        "worker-1", 1, make_report(1, make_rounds(8), flood, dropped_rounds=2**62), 1.0
    )
    assert outcome.rejected == {"impossible_cell": 1}
    assert flushed(planner) == {}


def test_one_worker_gives_at_most_four_even_shares_of_a_cell() -> None:
    planner = Planner(PlannerConfig())
    names = [f"w{i}" for i in range(16)]
    for stream, name in enumerate(names):
        planner.on_hello(make_hello(incarnation=name, requests=64), stream, 0.0)
    loud = make_cell((6400,), (6400,), (3200,))
    planner.on_reports("w0", 0, make_report(1, make_rounds(200, requests=64, carried=1), loud), 9.0)
    for stream, name in enumerate(names[1:], 1):
        quiet = make_cell((100,), (100,), (100,))
        planner.on_reports(name, stream, make_report(1, make_rounds(50), quiet), 9.0)
    own, _ = scopes(make_hello())
    drafted = flushed(planner)[own]["ngram|greedy|0|drafted|0|0"]
    # A quarter of what counts in the end, not of what was claimed.
    assert drafted == 1500 + 500


def test_a_new_worker_starts_from_the_store() -> None:
    own, _ = scopes(HELLO)
    planner = Planner(PlannerConfig())
    effects = planner.on_hello(HELLO, 1, 0.0)
    assert {effect.scope for effect in effects if isinstance(effect, ReadScope)} == set(
        scopes(HELLO)
    )
    (cold,) = plans(planner.replan(0.0))
    assert max(cold.drafters[0].draft_tokens) > 0
    hopeless = {f"ngram|greedy|0|{kind}|0|0": 10_000 for kind in ("drafted", "verified")}
    planner.on_store_snapshot(own, [hopeless])
    (warm,) = plans(planner.replan(0.1))
    assert warm.drafters[0].draft_tokens == (0,) * 6


def test_another_drafter_does_not_inherit() -> None:
    """Z03: same deployment, same store, another drafter: cold start values."""
    mtp = make_hello(incarnation="worker-2", drafter="mtp")
    assert not set(scopes(mtp)) & set(scopes(HELLO))
    _, cold = joined(hello=replace(mtp, worker_incarnation="worker-1"))
    planner = Planner(PlannerConfig())
    planner.on_hello(HELLO, 1, 0.0)
    planner.on_hello(mtp, 2, 0.0)
    # Even of its own name, what lies in another drafter's scopes says nothing of it.
    hopeless = {
        f"{drafter}|greedy|0|{kind}|0|0": 10_000
        for drafter in ("ngram", "mtp")
        for kind in ("drafted", "verified")
    }
    for scope in scopes(HELLO):
        planner.on_store_snapshot(scope, [hopeless])
    planner.replan(0.0)
    inherited, own = (planner.workers[name].plan for name in ("worker-1", "worker-2"))
    assert inherited is not None
    assert own is not None
    assert inherited.drafters[0].draft_tokens == (0,) * 6
    assert own.drafters == cold.drafters
    assert "warm start" not in own.reason


def test_guard_trips_clamps_and_drops_are_counted_once() -> None:
    planner, _ = joined()
    first = make_report(1, guard=GuardState(trips=2), clamps=3, dropped_rounds=5)
    outcome = planner.on_reports("worker-1", 1, first, 1.0)
    assert (outcome.guard_trips, outcome.clamps, outcome.dropped_rounds) == (2, 3, 5)
    second = make_report(2, guard=GuardState(trips=3), clamps=3, dropped_rounds=5)
    outcome = planner.on_reports("worker-1", 1, second, 2.0)
    assert (outcome.guard_trips, outcome.clamps, outcome.dropped_rounds) == (1, 0, 0)


def test_report_intervals_grow_with_the_fleet() -> None:
    planner = Planner(PlannerConfig(report_interval_ms=100, max_workers=400))
    for stream in range(300):
        planner.on_hello(make_hello(incarnation=f"w{stream}", max_draft=1), stream, 0.0)
    found = plans(planner.plan("w299", 0.0))
    assert {plan.report_interval_ms for plan in found} == {300}


def test_plain_rounds_are_asked_for_only_when_none_happened() -> None:
    planner, first = joined()
    assert first.probe.plain_share == 0.0
    pushed: list[Plan] = []
    for step in range(1, 30):
        pushed += told(planner, make_report(step, make_rounds(64), GOOD), step * 3.0)
    assert pushed[-1].probe.plain_share > 0
    plain = make_rounds(8, carried=0)
    pushed += told(planner, make_report(30, plain), 91.0)
    assert pushed[-1].probe.plain_share == 0.0


def test_without_drafters_or_table_workers_are_planned_off() -> None:
    _, bare = joined(hello=make_hello(drafters=()))
    assert bare.drafters == ()
    assert "no drafter" in bare.reason
    _, blind = joined(hello=replace(HELLO, cost_table=None))
    assert blind.drafters[0].draft_tokens == (0,) * 6
    assert "no cost table" in blind.reason


def _with_another_drafter() -> Hello:
    """As HELLO, and a second drafter that costs the same."""
    assert HELLO.cost_table is not None
    (own,), (costs,) = HELLO.drafters, HELLO.cost_table.drafters
    other = replace(own, name="predicted"), replace(costs, drafter="predicted")
    table = replace(HELLO.cost_table, drafters=(costs, other[1]))
    return replace(HELLO, drafters=(own, other[0]), cost_table=table)


@pytest.mark.parametrize("hello", [HELLO, _with_another_drafter()], ids=["one", "two"])
def test_prediction_is_held_against_what_happened(hello: Hello) -> None:
    """Also where another drafter could have drafted, and did not; its costs stay as measured."""
    planner, _ = joined(hello=hello)
    rounds = make_rounds(8, accepted_tokens=3, emitted_tokens=5, draft_us=800)
    for step in range(1, 40):
        told(planner, make_report(step, rounds, GOOD), step * 0.25)
    worker = planner.workers["worker-1"]
    model = worker.costs.model()
    assert model is not None
    draft_s = {name: float(grid[1, 2]) for name, grid in model.draft_s.items()}
    assert draft_s.pop("ngram") == pytest.approx(800e-6, rel=0.1)
    assert all(left == pytest.approx(400e-6) for left in draft_s.values())
    forecast = worker.forecast
    assert forecast is not None
    assert forecast.realised_accepted_tokens == 3.0
    assert forecast.predicted_accepted_tokens == pytest.approx(3.6, rel=0.1)
    assert forecast.predicted_round_s == pytest.approx(forecast.measured_round_s, rel=0.05)
