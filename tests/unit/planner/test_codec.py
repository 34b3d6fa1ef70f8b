"""Wire and core values: round trips, and messages that cannot be read."""

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
from outrider_planner.rpc.codec import (
    WireError,
    hello_from_wire,
    plan_from_wire,
    plan_to_wire,
    reports_from_wire,
)
from tests.unit.planner.builders import make_hello, plans

single = st.floats(0, 1, width=32)
double = st.floats(0, 1e6)


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    steps, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ladder = tuple(range(1, steps + 1))
    count = st.integers(0, 2**31)
    row = st.tuples(*[count] * width)
    drafter = DrafterPlan(
        draw(st.text(max_size=9)),
        tuple(draw(st.lists(count, min_size=steps, max_size=steps))),
        tuple(draw(st.lists(row, min_size=steps, max_size=steps))),
    )
    bins = draw(st.integers(1, 3))
    survival = st.lists(st.tuples(*[single] * bins), min_size=1, max_size=3).map(tuple)
    return Plan(
        version=draw(st.integers(0, 2**63)),
        requests_ladder=ladder,
        drafters=(drafter,) * draw(st.integers(0, 2)),
        rate_tokens_per_s=tuple(draw(st.lists(double, min_size=steps, max_size=steps))),
        score_maps=(ScoreMap(draw(count), "a", "", draw(survival)),),
        class_rules=(ClassRule("x", draw(double), draw(st.one_of(st.none(), st.integers(0, 9)))),),
        probe=ProbeDirective(draw(double), draw(double), draw(st.integers(0, 9))),
        guard=GuardSettings(draw(st.booleans()), draw(double), draw(double)),
        report_interval_ms=draw(count),
        validity_ms=draw(count),
        grace_ms=draw(count),
        policy=draw(st.text(max_size=9)),
        objective=draw(st.text(max_size=9)),
        reason=draw(st.text(max_size=40)),
    )


@given(random_plans())
def test_plans_survive_a_round_trip(plan: Plan) -> None:
    sent = plan_to_wire(plan).SerializeToString()
    assert plan_from_wire(wire.Plan.FromString(sent)) == plan


def test_a_plan_as_the_planner_makes_it_survives_too() -> None:
    (plan,) = plans(Planner(PlannerConfig()).on_hello(make_hello(bins=16), 1, 0.0))
    assert plan_from_wire(plan_to_wire(plan)) == plan
    assert plan_to_wire(plan).WhichOneof("shape") == "chain"


def test_tables_that_do_not_fit_their_ladder_are_refused() -> None:
    message = wire.Plan(requests_ladder=[1, 2])
    message.drafters.add(drafter="a", draft_tokens=[1, 1], max_carried_tokens=1, target_rows=[1])
    with pytest.raises(WireError, match="ladder"):
        plan_from_wire(message)


def test_a_hello_is_read_whole() -> None:
    message = wire.Hello(
        deployment="d",
        worker_incarnation="w",
        protocol_version=1,
        row_buckets=[1, 2],
        worker_address="127.0.0.1:7080",
    )
    message.limits.max_running_requests = 4
    message.limits.max_rows_per_forward = 8
    message.drafters.add(name="ngram", cost=1, max_draft_tokens=8, sparse=True, score_bins=16)
    message.drafters.add(name="odd", cost=99)
    curve = message.cost_table.target.add(context_tokens=64, rows=[1], median_us=[5])
    curve.samples.append(5)
    hello = hello_from_wire(message)
    assert (hello.deployment, hello.worker_address) == ("d", "127.0.0.1:7080")
    assert hello.drafters[0].sparse
    assert hello.drafters[1].cost.value == 0
    assert hello.drafters[1].score_bins == 1
    assert hello.cost_table is not None
    assert hello.cost_table.target[0].median_us == (5,)


def test_a_hello_without_a_table_is_not_one_with_an_empty_table() -> None:
    assert hello_from_wire(wire.Hello()).cost_table is None
    with_table = wire.Hello(cost_table=wire.CostTable())
    assert hello_from_wire(with_table).cost_table is not None


def test_numbers_beyond_63_bits_are_refused() -> None:
    with pytest.raises(WireError, match="63 bits"):
        reports_from_wire(wire.StepReports(target_us=[2**64 - 1]))


def test_reports_are_read_by_column() -> None:
    message = wire.StepReports(sequence=3, requests=[1, 2], target_us=[5, 6], clamps=1)
    message.cells.add(drafter="a", asked=2, asked_by_position=[2], drafted=[2], bin=[1])
    report = reports_from_wire(message)
    assert report.sequence == 3
    assert report.rounds.target_us.tolist() == [5, 6]
    assert report.guard is None
    assert report.cells[0].asked_by_position.tolist() == [2]
