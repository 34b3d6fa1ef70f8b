"""Plans on their way out: encoded once for all workers that share one."""

from dataclasses import replace

import pytest

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.core.types import Plan
from outrider_planner.rpc import plans
from outrider_planner.rpc.plans import PlanEncoder, plan_to_wire
from tests.unit.planner.joined import joined


def sent_plan() -> Plan:
    planner, _ = joined()
    plan = planner.workers["worker-1"].plan
    assert plan is not None
    return plan


def test_one_plan_of_many_workers_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Plan] = []

    def counting(plan: Plan) -> wire.Plan:
        encoded.append(plan)
        return plan_to_wire(plan)

    monkeypatch.setattr(plans, "plan_to_wire", counting)
    encoder, plan = PlanEncoder(), sent_plan()
    for version in (7, 300, 7):
        found = encoder.response(replace(plan, version=version)).plan
        assert found == plan_to_wire(replace(plan, version=version))
    assert len(encoded) == 1
    encoder.response(replace(plan, reason="another"))
    assert len(encoded) == 2


def test_a_message_that_was_handed_out_is_not_changed_by_later_ones() -> None:
    encoder, plan = PlanEncoder(), sent_plan()
    first = encoder.response(replace(plan, version=1))
    first.plan.requests_ladder.append(99)
    second = encoder.response(replace(plan, version=2))
    assert (first.plan.version, second.plan.version) == (1, 2)
    assert tuple(second.plan.requests_ladder) == plan.requests_ladder
