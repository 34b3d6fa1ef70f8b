"""Whose turn it is to be planned, what idle means, and a worker that says hello anew."""

from dataclasses import replace
from typing import Any

import pytest

from outrider_planner.core.events import FlushDeltas, HoldPlan, PlannerConfig, PushPlan
from outrider_planner.core.planner import Planner, scopes
from outrider_planner.core.policies import Decision, parse
from tests.unit.planner.builders import make_hello, make_report, make_rounds, plans
from tests.unit.planner.joined import GOOD, HELLO, joined, told


def test_a_report_of_nothing_believable_does_not_mean_idle() -> None:
    """F19: all rounds impossible is "could not find out"; no rounds at all is idle."""
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(8, requests=3), GOOD), 1.0)
    worker = planner.workers["worker-1"]
    told(planner, make_report(2, make_rounds(8, requests=0)), 1.5)
    assert worker.requests_at(1.5) == 3
    told(planner, make_report(3, make_rounds(0)), 2.0)
    assert worker.requests_at(2.0) == 0


def test_a_worker_that_reports_nothing_is_idle_after_three_seconds() -> None:
    planner, _ = joined()
    told(planner, make_report(1, make_rounds(8, requests=3), GOOD), 1.0)
    worker = planner.workers["worker-1"]
    assert [worker.requests_at(now_s) for now_s in (1.0, 3.9, 4.1)] == [3, 3, 0]
    assert worker.step_at(4.1) == 0


class Failing:
    """A policy from outside that cannot cope with one worker's load."""

    name = "failing"

    def decide(self, snapshot: Any, *arguments: Any) -> Decision:
        if snapshot.present_requests == 7:
            raise KeyError("seven")
        return parse("static:2").decide(snapshot, *arguments)


def test_a_policy_that_raises_for_one_worker_starves_no_other() -> None:
    planner = Planner(PlannerConfig(policy=Failing()))
    for stream, name in enumerate(("a", "b", "c")):
        planner.on_hello(make_hello(incarnation=name), stream, 0.0)
    planner.workers["a"].present_requests = 7
    effects = planner.replan(0.0)
    held = [effect for effect in effects if isinstance(effect, HoldPlan)]
    assert [(each.incarnation, each.reason) for each in held] == [("a", "failed")]
    assert isinstance(held[0].error, KeyError)
    assert {e.incarnation for e in effects if isinstance(e, PushPlan)} == {"b", "c"}
    # It is tried again a little later, and not before.
    planner.workers["a"].present_requests = 1
    assert planner.replan(0.5) == []
    assert len(plans(planner.replan(1.0))) == 1


def test_planning_takes_at_most_its_share_of_the_loop() -> None:
    """20 workers at 8 ms each: every one waits 320 ms, so half the time is left for streams."""
    planner = Planner(PlannerConfig(planning_share=0.5))
    names = [f"w{i}" for i in range(20)]
    for stream, name in enumerate(names):
        planner.on_hello(make_hello(incarnation=name, deployment=name), stream, 0.0)
    now_s, busy_s, planned = 0.0, 0.0, dict.fromkeys(names, 0)
    while now_s < 2.0:
        for worker in planner.workers.values():
            worker.dirty = True
        due_s, name = planner.next_due() or (now_s, "")
        now_s = max(now_s, due_s) + 0.008
        planner.plan(name, now_s)
        planner.planned(name, now_s, 0.008)
        busy_s, planned[name] = busy_s + 0.008, planned[name] + 1
    assert busy_s <= 0.55 * now_s
    assert max(planned.values()) - min(planned.values()) <= 1


def test_a_single_worker_waits_for_three_times_its_own_plan_and_no_longer() -> None:
    planner, _ = joined()
    planner.planned("worker-1", 1.0, 0.005)
    planner.on_reports("worker-1", 1, make_report(1, make_rounds(8), GOOD), 1.0)
    due = planner.next_due()
    assert due is not None
    assert due[1] == "worker-1"
    assert due[0] == pytest.approx(1.015)


def test_another_hello_of_the_same_worker_keeps_its_counters_and_flushes_first() -> None:
    planner, _ = joined()
    told(planner, make_report(7, make_rounds(8), GOOD, clamps=3, dropped_rounds=5), 1.0)
    changed = make_hello(drafter="mtp")
    effects = planner.on_hello(changed, 2, 2.0)
    flushed_scopes = [e.scope for e in effects if isinstance(e, FlushDeltas)]
    assert flushed_scopes == list(scopes(HELLO))
    worker = planner.workers["worker-1"]
    assert (worker.hello, worker.stream, worker.fast) == (changed, 2, {})
    report = make_report(7, make_rounds(8), clamps=3, dropped_rounds=6)
    assert planner.on_reports("worker-1", 2, report, 3.0).rejected == {"duplicate": 1}
    outcome = planner.on_reports("worker-1", 2, replace(report, sequence=8), 3.0)
    assert (outcome.clamps, outcome.dropped_rounds) == (0, 1)
