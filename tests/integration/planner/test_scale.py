"""The short form of benchmarks/planner_scale: fifty streams over real gRPC, all served, and soon.

The planner runs in a process of its own. How soon a report becomes a plan is measured by the
benchmark on a quiet machine; what is bounded here, the planner's own processor time, is the same on
a busy one.
"""

import time

from benchmarks.planner_scale import planner
from benchmarks.planner_workers import Reports, numbered, run
from outrider.planner.v1 import planner_pb2 as wire
from tests.support.net import LOOPBACK

STREAMS, PROBES = 50, 2
# So much longer a stream without a plan is waited for: a busy machine is no planner that forgets.
PATIENCE_S = 30.0


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
        target, cpu_s, began_s = f"{LOOPBACK}:{running.port}", running.cpu_s(), time.monotonic()
        totals = await run(target, 0, STREAMS, PROBES, 1.0, 6.0, patience_s=PATIENCE_S)
        cores = (running.cpu_s() - cpu_s) / (time.monotonic() - began_s)
        counted = running.histogram("outrider_planner_report_to_plan_seconds")
    assert totals.planned_streams == STREAMS
    assert (totals.ended, totals.reasons) == (0, {})
    assert totals.reports >= 2 * STREAMS
    assert counted[float("inf")] >= STREAMS
    assert len(totals.latencies_ms) >= PROBES
    assert cores < 0.5


async def test_a_fleet_that_comes_all_at_once_is_planned_at_once() -> None:
    """As after a restart of the planner: nobody's first plan waits for another's."""
    with planner() as running:
        target = f"{LOOPBACK}:{running.port}"
        totals = await run(target, 0, STREAMS, 0, 1.0, 3.0, join_s=0.0, patience_s=PATIENCE_S)
    assert (totals.planned_streams, totals.ended) == (STREAMS, 0)
