"""A plan as the planner sends it, read by the worker's own converter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.planner import Planner
from outrider_planner.core.types import (
    ClassRule,
    DrafterPlan,
    GuardSettings,
    Plan,
    ProbeDirective,
    ScoreMap,
)
from outrider_planner.rpc.plans import plan_to_wire
from outrider_worker.engine import plans as worker
from outrider_worker.planner_client.convert import plan_from_wire
from tests.unit.planner.builders import make_hello, plans

single = st.floats(0, 1, width=32)
share = st.floats(0, 1)


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    steps, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    count = st.integers(0, 2**31)
    row = st.tuples(*[count] * width)
    names = draw(st.lists(st.text(max_size=9), max_size=2, unique=True))
    tables = [
        (
            tuple(draw(st.lists(count, min_size=steps, max_size=steps))),
            tuple(draw(st.lists(row, min_size=steps, max_size=steps))),
        )
        for _ in names
    ]
    bins = draw(st.integers(1, 3))
    survival = st.lists(st.tuples(*[single] * bins), min_size=1, max_size=3).map(tuple)
    return Plan(
        version=draw(st.integers(0, 2**63)),
        requests_ladder=tuple(range(1, steps + 1)),
        drafters=tuple(DrafterPlan(n, *table) for n, table in zip(names, tables, strict=True)),
        rate_tokens_per_s=tuple(draw(st.lists(share, min_size=steps, max_size=steps))),
        score_maps=(ScoreMap(draw(count), "a", "", draw(survival)),),
        class_rules=(ClassRule("x", draw(share), draw(st.one_of(st.none(), st.integers(0, 9)))),),
        probe=ProbeDirective(draw(share), draw(share), draw(st.integers(0, 9))),
        guard=GuardSettings(True, draw(st.floats(1, 64)), draw(st.floats(0.005, 0.2))),
        report_interval_ms=draw(count),
        validity_ms=draw(count),
        grace_ms=draw(count),
        policy=draw(st.text(max_size=9)),
        objective="throughput",
        reason=draw(st.text(max_size=40)),
    )


def received(plan: Plan) -> worker.Plan:
    return plan_from_wire(wire.Plan.FromString(plan_to_wire(plan).SerializeToString()))


def as_read(plan: Plan) -> worker.Plan:
    """What the worker must make of it; the price of a row and the objective stay the planner's."""
    return worker.Plan(
        version=plan.version,
        requests_ladder=plan.requests_ladder,
        budgets={
            item.drafter: worker.DrafterBudget(item.draft_tokens, item.target_rows)
            for item in plan.drafters
        },
        score_maps={
            (item.drafter, item.request_class): worker.ScoreMap(item.version, item.survival)
            for item in plan.score_maps
        },
        class_caps={
            rule.request_class: rule.max_draft_tokens
            for rule in plan.class_rules
            if rule.max_draft_tokens is not None
        },
        class_weights={rule.request_class: rule.weight for rule in plan.class_rules},
        probe=worker.Probe(
            plan.probe.cohort_share, plan.probe.plain_share, plan.probe.draft_tokens
        ),
        guard=worker.GuardThresholds(
            plan.guard.minimum_threshold_tokens, plan.guard.detectable_loss_ratio
        ),
        validity_s=plan.validity_ms / 1e3,
        grace_s=plan.grace_ms / 1e3,
        report_interval_s=plan.report_interval_ms / 1e3,
        policy=plan.policy,
        reason=plan.reason,
    )


@given(random_plans())
def test_a_worker_reads_what_was_planned(plan: Plan) -> None:
    assert received(plan) == as_read(plan)


def test_a_plan_as_the_planner_makes_it_is_obeyed_as_meant() -> None:
    planner, hello = Planner(PlannerConfig()), make_hello(bins=16)
    planner.on_hello(hello, 1, 0.0)
    (plan,) = plans(planner.replan(0.0))
    read = received(plan)
    assert read == as_read(plan)
    assert plan_to_wire(plan).WhichOneof("shape") == "chain"
    for step, requests in enumerate(plan.requests_ladder):
        drafts = plan.drafters[0].draft_tokens[step]
        assert read.draft_tokens("ngram", requests) == drafts
        rows = read.target_rows("ngram", requests, drafts)
        assert rows == plan.drafters[0].target_rows[step][drafts]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_plan_cannot_switch_a_guard_off(enabled: bool) -> None:
    planner = Planner(PlannerConfig(guard=GuardSettings(enabled=enabled)))
    planner.on_hello(make_hello(), 1, 0.0)
    (plan,) = plans(planner.replan(0.0))
    assert received(plan).guard == worker.GuardThresholds()
