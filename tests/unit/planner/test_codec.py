"""What workers say as core values, and messages that cannot be read."""

import pytest

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.rpc.codec import WireError, hello_from_wire, reports_from_wire


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


def test_columns_of_unequal_length_stay_apart() -> None:
    """What they mean together is the core's to judge."""
    message = wire.StepReports(requests=[1, 2, 3], target_rows=[7], next_draft_tokens=[4, 5])
    rounds = reports_from_wire(message).rounds
    assert rounds.requests.tolist() == [1, 2, 3]
    assert rounds.target_rows.tolist() == [7]
    assert rounds.feed_us.tolist() == []
    assert rounds.next_draft_tokens.tolist() == [4, 5]
