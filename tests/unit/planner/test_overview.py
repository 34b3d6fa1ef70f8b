"""What a live page is told: every deployment at a glance, and the plan as a map over n × d."""

from dataclasses import replace

import pytest

from outrider_planner.core.cells import cell, ratios_by_length
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.explain import explain
from outrider_planner.core.overview import overview, plan_map, rate_map
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import parse
from outrider_planner.core.types import GuardState
from outrider_planner.core.weighted import weighted_mean
from outrider_planner.metrics import PlannerMetrics
from tests.unit.planner.builders import World, make_hello, make_report, make_rounds
from tests.unit.planner.joined import BAD, GOOD, joined, told


def taught(policy: str = "two_stage", sparse: bool = False, max_rows: int = 128) -> Planner:
    planner = Planner(PlannerConfig(policy=parse(policy)))
    World(planner, make_hello(sparse=sparse, max_rows=max_rows), 0.8, requests=2).run(96)
    return planner


def last_report_s(planner: Planner) -> float:
    told_s = planner.workers["worker-1"].last_report_s
    assert told_s is not None
    return told_s


@pytest.mark.parametrize("sparse", [False, True])
def test_the_map_holds_the_rate_of_the_best_rows_for_every_length(sparse: bool) -> None:
    basis = taught(sparse=sparse).basis["worker-1"]
    assert basis.cost is not None
    (known,) = basis.snapshot.drafters
    ratios = ratios_by_length(known, basis.cost)
    assert ratios.shape == (len(basis.cost.ladder), known.gain.positions + 1)
    assert ratios[:, 0] == pytest.approx(1.0)
    for step, n in enumerate(basis.cost.ladder):
        for d in range(1, known.gain.positions + 1):
            rows = range(1, n * d + 1)
            tried = [cell(known, basis.cost, step, d, v).rate_vs_off_ratio for v in rows]
            assert ratios[step, d] == pytest.approx(max(tried), rel=1e-9)


def test_a_length_asked_about_is_priced_as_the_map_prices_it() -> None:
    planner = taught()
    basis, decision = planner.basis["worker-1"], planner.workers["worker-1"].decision
    assert decision is not None
    for step, n in enumerate(planner.workers["worker-1"].ladder):
        for d in range(5):
            (why,) = explain(basis, decision, n, d).drafters
            assert why.asked is not None
            assert (why.asked.requests, why.asked.draft_tokens) == (n, d)
            ratio = rate_map(basis)["ngram"][step][d]
            assert why.asked.rate_vs_off_ratio == pytest.approx(ratio, rel=1e-9)
    assert explain(basis, decision, 1, 5).drafters[0].asked is None, "it never drafts so many"
    assert explain(basis, decision, 1).drafters[0].asked is None, "nobody asked"


def test_lengths_that_leave_no_row_for_a_draft_have_no_rate() -> None:
    """At n = 8 all eight rows are the requests' own."""
    rates = rate_map(taught(max_rows=8).basis["worker-1"])["ngram"]
    assert rates[-1] == [pytest.approx(1.0), None, None, None, None]
    assert None not in rates[0]


def test_the_planned_lengths_stand_beside_the_map() -> None:
    planner = taught()
    worker, now_s = planner.workers["worker-1"], last_report_s(planner)
    assert worker.plan is not None
    found = plan_map(worker, rate_map(planner.basis["worker-1"]), now_s)
    assert (found["worker"], found["requests"]) == ("worker-1", 2)
    assert found["requests_ladder"][found["present_step"]] == 2
    (drafter,) = found["drafters"]
    assert drafter["draft_tokens"] == worker.plan.drafters[0].draft_tokens
    for step, d in enumerate(drafter["draft_tokens"]):
        rates = drafter["rate_vs_off_ratio"][step]
        assert rates[d] >= max(rates) * 0.996, "the margin a change must promise"


def test_without_costs_there_is_a_plan_and_no_map() -> None:
    planner, _ = joined(PlannerConfig(policy=parse("static:2")), make_hello(cost_table=None))
    basis, worker = planner.basis["worker-1"], planner.workers["worker-1"]
    (drafter,) = plan_map(worker, rate_map(basis), 0.0)["drafters"]
    assert (set(drafter["draft_tokens"]), drafter["rate_vs_off_ratio"]) == ({2}, [])


def test_every_deployment_at_a_glance() -> None:
    planner = taught()
    planner.on_hello(make_hello(deployment="other", incarnation="worker-2"), 2, 0.0)
    now_s = last_report_s(planner)
    demo, other = overview(planner, now_s)["deployments"]
    assert (demo["deployment"], demo["policy"], demo["objective"]) == (
        "demo",
        "two_stage",
        "throughput",
    )
    (worker,) = demo["workers"]
    plan = planner.workers["worker-1"].plan
    assert plan is not None
    assert (worker["worker"], worker["model"], worker["state"]) == ("worker-1", "tiny", "busy")
    assert (worker["requests"], worker["plan_version"]) == (2, plan.version)
    assert worker["plan_age_s"] >= 0
    (drafter,) = worker["drafters"]
    step = plan.requests_ladder.index(2)
    d = plan.drafters[0].draft_tokens[step]
    assert (drafter["draft_tokens"], drafter["target_rows"]) == (
        d,
        plan.drafters[0].target_rows[step][d],
    )
    assert drafter["rate_vs_off_ratio"] > 1.2
    (unplanned,) = other["workers"]
    assert (unplanned["state"], unplanned["plan_version"], unplanned["drafters"]) == (
        "idle",
        None,
        [],
    )


def two_drafters() -> Planner:
    """One drafter that held and one that nothing was verified of, whose prior promises more."""
    known = make_hello()
    idle = replace(known.drafters[0], name="predicted")
    costs = known.cost_table
    assert costs is not None
    planner = Planner(PlannerConfig())
    free = replace(costs.drafters[0], drafter="predicted")
    hello = replace(
        known,
        drafters=(*known.drafters, idle),
        cost_table=replace(costs, drafters=(*costs.drafters, free)),
    )
    World(planner, hello, 0.3, requests=2).run(96)
    return planner


def test_a_drafter_that_nothing_was_verified_of_does_not_speak_for_the_worker() -> None:
    planner = two_drafters()
    now_s = last_report_s(planner)
    (worker,) = overview(planner, now_s)["deployments"][0]["workers"]
    ngram, predicted = worker["drafters"]
    assert predicted["verified"] == 0.0 < ngram["verified"]
    assert predicted["rate_vs_off_ratio"] > ngram["rate_vs_off_ratio"] + 0.1, "by its prior alone"
    assert worker["rate_vs_off_ratio"] == pytest.approx(ngram["rate_vs_off_ratio"])
    metrics, label = PlannerMetrics(), {"worker": "worker-1"}
    metrics.refresh("worker-1", planner.workers["worker-1"], now_s)
    sample = metrics.registry.get_sample_value
    shown = sample("outrider_planner_mean_rate_vs_off_ratio", label)
    assert shown == pytest.approx(ngram["rate_vs_off_ratio"])
    cost = planner.workers["worker-1"].cost_model
    assert cost is not None
    off = cost.off_rate()[cost.ladder.index(2)]
    assert sample("outrider_planner_predicted_rate_tokens_per_second", label) == pytest.approx(
        ngram["rate_vs_off_ratio"] * off
    )


def test_drafters_count_by_what_was_verified_of_them() -> None:
    assert weighted_mean({"a": 1.0, "b": 2.0}, {"a": 30.0, "b": 10.0}) == pytest.approx(1.25)
    assert weighted_mean({"a": None, "b": 2.0}, {"a": 30.0, "b": 10.0}) == pytest.approx(2.0)
    assert weighted_mean({"a": 1.4}, {}) is None


@pytest.mark.parametrize(("policy", "ratio"), [("off", 1.0), ("static:2", None)])
def test_what_a_policy_does_not_foretell_is_not_made_up(policy: str, ratio: float | None) -> None:
    planner = taught(policy)
    (deployment,) = overview(planner, last_report_s(planner))["deployments"]
    assert deployment["workers"][0]["drafters"][0]["rate_vs_off_ratio"] == ratio


def test_guard_trips_and_drift_are_marked() -> None:
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(64), GOOD), 0.5)

    def worker() -> dict[str, object]:
        (deployment,) = overview(planner, 0.5)["deployments"]
        found: dict[str, object] = deployment["workers"][0]
        return found

    marks = ("guard_tripped", "guard_trips", "drift_events")
    assert [worker()[name] for name in marks] == [None, None, 0]
    planner.workers["worker-1"].guard = GuardState(tripped=True, trips=2)
    drifts = 0
    for sequence in range(2, 8):
        report = make_report(sequence, make_rounds(64), BAD)
        drifts += planner.on_reports("worker-1", 1, report, 0.5 * sequence).drifts
        planner.replan(0.5 * sequence)
    assert drifts > 0
    assert [worker()[name] for name in marks] == [True, 2, drifts]
