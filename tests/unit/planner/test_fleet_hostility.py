"""What a fleet may throw at one planner: replays, lies, clock steps, names, and too many of all."""

from dataclasses import replace

import numpy as np
import pytest

from outrider_planner.core.events import ForgetScope, ForgetWorker, PlannerConfig
from outrider_planner.core.hellos import CapacityError, HelloRefusedError
from outrider_planner.core.planner import Planner
from outrider_planner.core.types import GuardState
from outrider_planner.service import PlannerService
from outrider_planner.store.base import Batch
from outrider_planner.store.memory import MemoryStore
from outrider_runtime.clock import VirtualClock
from tests.unit.planner.builders import make_cell, make_hello, make_report, make_rounds
from tests.unit.planner.flaky_store import FlakyStore
from tests.unit.planner.joined import GOOD, flushed, joined, told

OWN = "ngram|greedy|0|verified|0|0"


def sums(planner: Planner) -> int:
    """Verified drafts at the first position that a flush would bring to the store."""
    return sum(f.get(OWN, 0) for scope, f in flushed(planner).items() if scope.startswith("demo"))


def test_a_replayed_or_repeated_report_counts_once() -> None:
    planner, _ = joined()
    first, second = (make_report(s, make_rounds(8), GOOD) for s in (1, 2))
    for number, report in enumerate((first, first, second, first, second)):
        told(planner, report, 1.0 + number)
    worker = planner.workers["worker-1"]
    assert worker.rounds == 16
    assert worker.rejected == {"duplicate": 3}
    assert sums(planner) == 32


def test_reports_of_an_older_stream_count_for_nothing() -> None:
    planner, _ = joined()
    planner.on_hello(make_hello(), 2, 1.0)
    outcome = planner.on_reports("worker-1", 1, make_report(1, make_rounds(8), GOOD), 1.0)
    assert outcome.rejected == {"unknown_stream": 1}
    assert sums(planner) == 0


def test_a_lying_worker_moves_no_plan_but_its_own_and_little_of_the_sums() -> None:
    """One of eight claims perfect drafts at a hundred times the rate of the honest."""
    planner = Planner(PlannerConfig())
    names = [f"w{number}" for number in range(8)]
    for stream, name in enumerate(names):
        planner.on_hello(make_hello(incarnation=name, requests=8), stream, 0.0)
    honest = make_report(1, make_rounds(32), make_cell((64, 64), (64, 64), (6, 1)))
    lie = make_cell((6400, 6400), (6400, 6400), (6400, 6400))
    claimed = make_report(1, make_rounds(800, requests=8), lie)
    for second in range(1, 7):
        for stream, name in enumerate(names):
            report = replace(claimed if name == "w0" else honest, sequence=second)
            planner.on_reports(name, stream, report, 10.0 * second)
        planner.replan(10.0 * second)
    plans = {name: planner.workers[name].plan for name in names}
    drafts = {name: plan.drafters[0].draft_tokens[-1] for name, plan in plans.items() if plan}
    assert drafts.pop("w0") > 0
    assert drafts == dict.fromkeys(names[1:], 0)
    told_of_all = sums(planner)
    assert told_of_all - 7 * 6 * 64 <= 4 / 8 * told_of_all + 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_hold_the_last_plan(value: float) -> None:
    """F19: unknown is not zero."""
    planner, first = joined()
    guard = GuardState(False, value, 8.0, 0.6, 1.0, 3, 1, 0.0)
    assert told(planner, make_report(1, make_rounds(0), guard=guard), 1.0) == []
    worker = planner.workers["worker-1"]
    assert (worker.guard, worker.plan) == (None, first)
    assert worker.rejected["not_finite"] == 1


def test_two_workers_with_one_address_are_two_workers() -> None:
    planner = Planner(PlannerConfig())
    for stream, name in enumerate(("a", "b")):
        planner.on_hello(make_hello(incarnation=name, worker_address="h:1"), stream, 0.0)
    planner.on_reports("a", 0, make_report(1, make_rounds(8), GOOD), 1.0)
    assert (planner.workers["a"].rounds, planner.workers["b"].rounds) == (8, 0)


def test_capacity_is_bounded_and_comes_back() -> None:
    """Deployments, workers and classes; whoever left makes room, and its scopes are dropped."""
    planner = Planner(PlannerConfig(max_workers=2, max_deployments=2, max_classes=3))
    planner.on_hello(make_hello(incarnation="a", deployment="one"), 0, 0.0)
    planner.on_hello(make_hello(incarnation="b", deployment="two"), 1, 0.0)
    with pytest.raises(CapacityError, match="workers"):
        planner.on_hello(make_hello(incarnation="c", deployment="one"), 2, 0.0)
    with pytest.raises(CapacityError, match="deployments"):
        planner.on_hello(make_hello(incarnation="c", deployment="three"), 2, 0.0)
    for number in range(20):
        cell = replace(GOOD, request_class=f"class-{number}")
        planner.on_reports("a", 0, make_report(number + 1, make_rounds(8), cell), 2.0 * number)
    assert {label for _, label in planner.workers["a"].fast} == {"class-0", "class-1", "other"}
    planner.on_gone("b", 1, 50.0)
    gone = planner.on_tick(120.0)
    assert ForgetWorker("b") in gone
    planner.on_store_snapshot("two:gone", ({},))
    assert any(isinstance(effect, ForgetScope) for effect in planner.on_tick(121.0))
    planner.on_hello(make_hello(incarnation="c", deployment="three"), 2, 122.0)
    assert set(planner.workers) == {"a", "c"}


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\x00b", "ä", "*"])
def test_names_that_would_reach_keys_and_logs_are_refused(name: str) -> None:
    with pytest.raises(HelloRefusedError):
        Planner(PlannerConfig()).on_hello(make_hello(incarnation=name), 1, 0.0)
    with pytest.raises(HelloRefusedError):
        Planner(PlannerConfig()).on_hello(make_hello(deployment=name), 1, 0.0)


async def run_with_steps(steps: dict[int, float]) -> list[tuple[int, ...]]:
    """The plans of one worker over forty seconds; at some of them the wall clock jumps."""
    clock, store = VirtualClock(), FlakyStore()
    service = PlannerService(PlannerConfig(), store, clock, "planner-1")
    service.start()
    session = service.open(make_hello())
    found = []
    for second in range(1, 41):
        clock.step_wall(steps.get(second, 0.0))
        await clock.advance(1.0)
        accepted = 7 if second < 20 else 0
        cell = make_cell((8, 8), (8, 8), (accepted, accepted))
        service.report(session, make_report(second, make_rounds(4), cell))
        while (due := service.planner.next_due()) is not None and due[0] <= service.now_s():
            service._plan_one(due[1])
        plan = service.planner.workers["worker-1"].plan
        assert plan is not None
        found.append(plan.drafters[0].draft_tokens)
    await service.stop()
    return found


async def test_steps_of_the_planners_clock_change_no_decision() -> None:
    steady = await run_with_steps({})
    assert await run_with_steps({5: 3600.0, 12: -7200.0, 25: 1e7, 31: -1e7}) == steady
    assert steady[10] != steady[-1]


@pytest.mark.parametrize("step_s", [-3600.0, -1e6, 3600.0, 1e7])
async def test_steps_of_the_stores_clock_lose_no_sums(step_s: float) -> None:
    now_s = [1e9]
    store = MemoryStore(lambda: now_s[0])
    await store.add("s", Batch("w", 1, {"a": 1}))
    now_s[0] += step_s
    await store.add("s", Batch("w", 2, {"a": 1}))
    now_s[0] -= step_s
    await store.add("s", Batch("w", 3, {"a": 1}))
    buckets = await store.buckets("s")
    assert sum(bucket["a"] for bucket in buckets) == 3
    assert len(buckets) <= 2


def test_a_report_beyond_what_time_allows_is_refused_whole() -> None:
    planner, _ = joined()
    """Rounds may use up a minute that went unreported, and no more."""
    told(planner, make_report(1, make_rounds(4), GOOD), 1.0)
    told(planner, make_report(2, make_rounds(20_000), GOOD), 1.1)
    worker = planner.workers["worker-1"]
    before = np.copy(worker.fast["ngram", "greedy"].grid)
    told(planner, make_report(3, make_rounds(20_000), GOOD), 1.2)
    assert worker.rejected["too_many_rounds"] == 1
    np.testing.assert_array_equal(worker.fast["ngram", "greedy"].grid, before)
