"""The short form of benchmarks/planner_scale: fifty streams over real gRPC, all served, and soon.

The planner runs in a process of its own. What it must hold is measured by the benchmark on a quiet
machine; here the limits only tell a planner that keeps up from one that does not.
"""

import statistics

from benchmarks.planner_scale import planner
from benchmarks.planner_workers import Reports, numbered, run
from outrider.planner.v1 import planner_pb2 as wire
from tests.support.net import LOOPBACK

STREAMS, PROBES = 50, 2


def test_reports_are_numbered_without_being_encoded_again() -> None:
    ready = Reports(0.1)
    first, second = ready.drifting(1, 0.0), ready.drifting(1 + 8, 0.0)
    read = [wire.PlanRequest.FromString(each).reports for each in (first, second)]
    assert [each.sequence for each in read] == [1, 9]
    assert len(read[0].requests) == len(read[0].target_us) > 1
    read[1].sequence = 1
    assert read[0] == read[1]
    assert wire.PlanRequest.FromString(numbered(first, 7)).reports.sequence == 7


async def test_fifty_streams_are_served_and_share_a_plan() -> None:
    with planner() as running:
        target = f"{LOOPBACK}:{running.port}"
        totals = await run(target, 0, STREAMS, PROBES, 0.5, 5.0)
        counted = running.histogram("outrider_planner_report_to_plan_seconds")
    assert totals.planned_streams == STREAMS
    assert (totals.ended, totals.reasons) == (0, {})
    assert totals.reports >= 0.7 * STREAMS * 5.0 / 0.5
    assert statistics.median(totals.latencies_ms) < 500
    assert counted[float("inf")] >= 0.5 * totals.reports


async def test_a_fleet_that_comes_all_at_once_is_planned_at_once() -> None:
    """As after a restart of the planner: nobody's first plan waits for another's."""
    with planner() as running:
        totals = await run(f"{LOOPBACK}:{running.port}", 0, STREAMS, 0, 1.0, 3.0, join_s=0.0)
    assert (totals.planned_streams, totals.ended) == (STREAMS, 0)
