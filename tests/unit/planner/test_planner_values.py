"""Settings and cost tables that reach the core: from an operator, and back from the store."""

from dataclasses import replace

import pytest

from outrider_planner.core.events import (
    PlannerConfig,
    ReadCosts,
    ReadSettings,
    RefuseStored,
    StoreCosts,
    StoreSettings,
    WarmStart,
)
from outrider_planner.core.planner import Planner, scopes
from outrider_planner.core.settings import DeploymentSettings, SettingsError
from outrider_planner.core.shared_costs import (
    CostTableError,
    cost_digest,
    table_from_json,
    table_to_json,
)
from outrider_planner.core.types import ClassRule, GuardSettings
from tests.unit.planner.builders import make_hello, make_report, make_rounds, make_table, plans
from tests.unit.planner.joined import GOOD, HELLO, joined, told

TABLELESS = replace(HELLO, cost_table=None)
DIGEST = cost_digest(HELLO.identity)
TEXT = table_to_json(make_table(max_draft=4))


def test_new_settings_reach_the_worker_as_a_plan_change() -> None:
    planner, first = joined()
    chosen = DeploymentSettings(policy="static:2", guard=GuardSettings(True, 16.0, 0.05))
    (stored,) = planner.on_settings("demo", chosen, 1.0)
    (plan,) = plans(planner.replan(1.0))
    assert (plan.policy, plan.version) == ("static:2", first.version + 1)
    assert plan.drafters[0].draft_tokens == (2,) * 6
    assert plan.guard.minimum_threshold_tokens == 16.0
    assert stored == StoreSettings("demo", 1, replace(chosen, version=1).to_json())


def test_caps_and_class_rules_reach_the_plan() -> None:
    planner, first = joined()
    told(planner, make_report(1, make_rounds(64), GOOD), 0.5)
    rules = (ClassRule("greedy", 2.0, 1),)
    planner.on_settings("demo", DeploymentSettings(max_draft_tokens=1, class_rules=rules), 1.0)
    (plan,) = plans(planner.replan(1.0))
    assert max(first.drafters[0].draft_tokens) > 1
    assert max(plan.drafters[0].draft_tokens) == 1
    assert plan.class_rules == rules


def test_refused_settings_leave_the_plan_as_it_was() -> None:
    planner, first = joined()
    with pytest.raises(SettingsError):
        planner.on_settings("demo", DeploymentSettings(policy="fastest"), 1.0)
    assert planner.replan(1.0) == []
    assert planner.workers["worker-1"].plan == first


def test_another_planners_settings_are_taken_and_what_cannot_be_read_is_not() -> None:
    planner, _ = joined()
    theirs = DeploymentSettings(policy="off", version=3)
    assert planner.on_stored_settings("demo", theirs.to_json()) == []
    (plan,) = plans(planner.replan(1.0))
    assert plan.policy == "off"
    for text in ('{"policy": "fastest", "version": 9}', "nonsense"):
        (refused,) = planner.on_stored_settings("demo", text)
        assert isinstance(refused, RefuseStored)
    assert planner.settings.of("demo").settings == theirs


def test_a_store_that_lost_the_settings_is_told_again() -> None:
    planner, _ = joined()
    (kept,) = planner.on_settings("demo", DeploymentSettings(policy="off"), 1.0)
    assert planner.on_stored_settings("demo", None) == [kept]
    assert planner.on_stored_settings("demo", DeploymentSettings().to_json()) == [kept]
    assert planner.on_stored_settings("other", None) == []


def test_settings_are_read_at_the_hello_and_again_now_and_then() -> None:
    planner = Planner(PlannerConfig())
    assert ReadSettings("demo") in planner.on_hello(HELLO, 1, 0.0)
    assert ReadSettings("demo") in planner.on_tick(20.0)


def test_a_measured_table_is_stored_once_and_again_after_a_while() -> None:
    planner = Planner(PlannerConfig())
    (stored,) = [e for e in planner.on_hello(HELLO, 1, 0.0) if isinstance(e, StoreCosts)]
    assert stored == StoreCosts(DIGEST, TEXT)
    twin = replace(HELLO, worker_incarnation="worker-2")
    assert not any(isinstance(e, StoreCosts) for e in planner.on_hello(twin, 2, 1.0))
    assert not any(isinstance(e, StoreCosts) for e in planner.on_tick(20.0))
    assert stored in planner.on_tick(700.0)


def test_a_worker_without_a_table_starts_from_the_stored_one_and_says_so() -> None:
    planner = Planner(PlannerConfig())
    assert ReadCosts(DIGEST) in planner.on_hello(TABLELESS, 1, 0.0)
    (cold,) = plans(planner.replan(0.0))
    assert "no cost table" in cold.reason
    assert ReadCosts(DIGEST) in planner.on_tick(20.0)
    assert planner.on_stored_costs(DIGEST, TEXT) == []
    effects = planner.replan(21.0)
    (plan,) = plans(effects)
    assert f"warm start from the stored cost table of identity {DIGEST}" in plan.reason
    assert max(plan.drafters[0].draft_tokens) > 0
    assert not any(isinstance(e, WarmStart) for e in effects)
    for scope in scopes(TABLELESS):
        planner.on_store_snapshot(scope, [])
    (warm,) = planner.replan(22.0)
    assert isinstance(warm, WarmStart)
    assert DIGEST in warm.sentence
    planner.workers["worker-1"].dirty = True
    assert planner.replan(23.0) == []


def test_another_identity_does_not_inherit_a_table() -> None:
    other = replace(TABLELESS, identity=replace(HELLO.identity, device="another"))
    planner = Planner(PlannerConfig())
    planner.on_hello(other, 1, 0.0)
    planner.on_stored_costs(DIGEST, TEXT)
    assert not planner.workers["worker-1"].costs.has_table
    assert cost_digest(other.identity) != DIGEST


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{}",
        '{"target": []}',
        '{"target": [{"context_tokens": 1, "rows": [1], "median_us": [0.5]}]}',
        '{"target": [{"context_tokens": 1, "rows": [2, 1], "median_us": [1, 2]}]}',
        '{"target": [{"context_tokens": 1, "rows": [1], "median_us": [1e400]}]}',
    ],
)
def test_a_stored_table_is_checked_like_a_hello(text: str) -> None:
    planner = Planner(PlannerConfig())
    planner.on_hello(TABLELESS, 1, 0.0)
    (refused,) = planner.on_stored_costs(DIGEST, text)
    assert isinstance(refused, RefuseStored)
    assert not planner.workers["worker-1"].costs.has_table


def test_tables_survive_their_text_and_their_own_measurement_wins() -> None:
    assert table_from_json(TEXT) == make_table(max_draft=4)
    with pytest.raises(CostTableError):
        table_from_json("[" * 100_000)
    planner, _ = joined()
    planner.on_stored_costs(DIGEST, TEXT)
    assert planner.workers["worker-1"].stored_table == ""


def test_a_new_worker_says_that_it_starts_from_the_fleet() -> None:
    teacher, _ = joined()
    told(teacher, make_report(1, make_rounds(64), GOOD), 0.5)
    own, fleet = scopes(HELLO)
    sums = {"ngram|greedy|0|verified|0|0": 500, "ngram|greedy|0|accepted|0|0": 400}
    planner = Planner(PlannerConfig())
    planner.on_hello(make_hello(incarnation="young"), 1, 0.0)
    planner.on_store_snapshot(own, [sums])
    planner.on_store_snapshot(fleet, [])
    effects = planner.replan(0.0)
    (plan,) = plans(effects)
    assert "warm start from 500 verified drafts of this deployment" in plan.reason
    assert [e.incarnation for e in effects if isinstance(e, WarmStart)] == ["young"]
