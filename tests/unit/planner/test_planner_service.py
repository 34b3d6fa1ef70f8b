"""The service around the core on a virtual clock: debounce, store outages, metrics."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from outrider_planner.core.events import Effect, PlannerConfig
from outrider_planner.core.planner import scopes
from outrider_planner.core.policies import Decision, parse
from outrider_planner.service import PlannerService
from outrider_planner.store.memory import MemoryStore
from outrider_runtime.clock import VirtualClock
from outrider_runtime.metrics import render
from tests.unit.planner.builders import make_cell, make_hello, make_report, make_rounds
from tests.unit.planner.flaky_store import FlakyStore

HELLO = make_hello()


async def planned(service: PlannerService) -> None:
    """Returns once no plan is due any more."""
    async with asyncio.timeout(5.0):
        while (due := service.planner.next_due()) is not None and due[0] <= service.now_s():
            await asyncio.sleep(0.002)


def exported(service: PlannerService) -> str:
    service.refresh_metrics()
    return render(service.metrics.registry).decode()


async def settled(clock: VirtualClock, seconds: float = 1.0) -> None:
    """Moves time, and gives the store's task its turns."""
    await clock.advance(seconds)
    for _ in range(20):
        await asyncio.sleep(0)


def started(store: MemoryStore, clock: VirtualClock) -> PlannerService:
    service = PlannerService(PlannerConfig(), store, clock, "planner-1")
    service.start()
    return service


async def test_reports_that_arrive_together_are_planned_once() -> None:
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    assert (await session.take(1.0)) is not None
    await clock.advance(2.0)
    for sequence in range(1, 30):
        service.report(session, make_report(sequence, make_rounds(4), make_cell((8,), (8,), (0,))))
    assert service.planner.workers["worker-1"].version == 1
    plan = await session.take(1.0)
    assert plan is not None
    assert plan.version == 2
    assert plan.drafters[0].draft_tokens == (0,) * 6
    await service.stop()


async def test_a_report_that_brings_no_news_waits_for_no_plan() -> None:
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    assert (await session.take(1.0)) is not None
    service.report(session, make_report(1, make_rounds(0)))
    await clock.advance(30.0)
    service.report(session, make_report(2, make_rounds(4), make_cell((8,), (8,), (0,))))
    assert (await session.take(1.0)) is not None
    assert "outrider_planner_report_to_plan_seconds_count 1.0" in exported(service)
    assert "outrider_planner_report_to_plan_seconds_sum 0.0" in exported(service)
    await service.stop()


async def test_a_slow_reader_gets_the_newest_plan_only() -> None:
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    for sequence in range(1, 40):
        await clock.advance(1.0)
        accepted = 4 if sequence < 20 else 0
        cell = make_cell((8, 8), (8, 8), (accepted, accepted))
        service.report(session, make_report(sequence, make_rounds(4), cell))
        await planned(service)
    plan = await session.take(1.0)
    assert plan is not None
    assert plan == service.planner.workers["worker-1"].plan
    assert await session.take(0.01) is None
    await service.stop()


async def test_store_away_planning_goes_on_and_sums_arrive_once_it_is_back() -> None:
    clock, store = VirtualClock(), FlakyStore()
    service = started(store, clock)
    session = service.open(HELLO)
    store.away = True
    for sequence in range(1, 6):
        service.report(session, make_report(sequence, make_rounds(4), make_cell()))
        await settled(clock)
    assert "outrider_planner_store_up 0.0" in exported(service)
    assert service.planner.workers["worker-1"].rounds == 20
    store.away = False
    await settled(clock, 2.0)
    assert "outrider_planner_store_up 1.0" in exported(service)
    (bucket,) = await store.buckets(scopes(HELLO)[0])
    assert bucket["ngram|greedy|0|drafted|0|0"] == 40
    await service.stop()


async def test_a_lost_answer_is_resent_unchanged_and_counts_once() -> None:
    clock, store = VirtualClock(), FlakyStore()
    service = started(store, clock)
    session = service.open(HELLO)
    await settled(clock)
    store.lose_answer = True
    service.report(session, make_report(1, make_rounds(4), make_cell()))
    await settled(clock)
    service.report(session, make_report(2, make_rounds(4), make_cell()))
    await settled(clock)
    store.lose_answer = False
    await settled(clock, 2.0)
    own = [b for b in store.sent if "ngram|greedy|0|asked|0|0" in b.fields]
    assert own[0] == own[1]
    (bucket,) = await store.buckets(scopes(HELLO)[0])
    assert bucket["ngram|greedy|0|drafted|0|0"] == 16
    await service.stop()


async def test_what_is_left_is_flushed_at_the_end() -> None:
    clock, store = VirtualClock(), FlakyStore()
    service = started(store, clock)
    session = service.open(HELLO)
    await settled(clock, 0.1)
    service.report(session, make_report(1, make_rounds(4), make_cell()))
    await service.stop()
    (bucket,) = await store.buckets(scopes(HELLO)[0])
    assert bucket["ngram|greedy|0|accepted|0|0"] == 4
    assert session.ended == "the planner is stopping"


async def test_a_younger_stream_ends_the_older_one() -> None:
    service = started(FlakyStore(), VirtualClock())
    older, younger = service.open(HELLO), service.open(HELLO)
    assert [older.ended is None, younger.ended is None] == [False, True]
    connected = []
    for session in (older, younger):
        service.close(session)
        connected.append(service.planner.workers["worker-1"].connected)
    assert connected == [True, False]
    await service.stop()


async def test_every_promised_series_is_there_and_goes_with_its_worker() -> None:
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    for sequence in range(1, 5):
        await clock.advance(1.0)
        service.report(session, make_report(sequence, make_rounds(4), make_cell()))
        await planned(service)
    text = exported(service)
    for name in (
        "draft_length",
        "verify_rows",
        "predicted_accepted_tokens",
        "realised_accepted_tokens",
        "predicted_round_seconds",
        "measured_round_seconds",
        "rate_vs_off_ratio",
        "mean_rate_vs_off_ratio",
        "plan_age_seconds",
        "headroom_ratio",
        "drift_events_total",
        "guard_readmissions_total",
        "predicted_rate_tokens_per_second",
        "reports_received_total",
        "plans_pushed_total",
        "reports_dropped_total",
        "guard_trips_total",
    ):
        assert f"outrider_planner_{name}{{" in text, name
    assert "outrider_planner_store_up " in text
    assert "NaN" not in text
    assert "_created" not in text
    # Gone, and never scraped in between: nothing of it stays.
    service.close(session)
    for _ in range(3):
        await settled(clock, 61.0)
    assert 'worker="worker-1"' not in render(service.metrics.registry).decode()
    await service.stop()


async def test_an_idle_worker_shows_no_measured_values() -> None:
    """G08: what was measured last is not what is now."""
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    await planned(service)
    service.report(session, make_report(1, make_rounds(4, requests=3), make_cell()))
    busy = exported(service)
    await clock.advance(4.0)
    idle = exported(service)
    for name in ("measured_round_seconds", "realised_accepted_tokens"):
        assert f'outrider_planner_{name}{{worker="worker-1"}}' in busy
        assert f"outrider_planner_{name}{{" not in idle
    assert 'present_requests{worker="worker-1"} 3.0' in busy
    assert 'present_requests{worker="worker-1"} 0.0' in idle
    await service.stop()


@pytest.mark.parametrize("policy", ["static:2", "off"])
async def test_rates_that_a_policy_does_not_forecast_are_not_shown(policy: str) -> None:
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    await planned(service)
    assert "rate_vs_off_ratio{" in exported(service)
    book = service.planner.settings
    book.default = replace(book.default, policy=parse(policy))
    service.report(session, make_report(1, make_rounds(4), make_cell()))
    await planned(service)
    text = exported(service)
    assert "rate_vs_off_ratio{" not in text
    assert "draft_length{" in text
    await service.stop()


class Raising:
    """A policy that fails until it is mended."""

    name = "raising"
    broken = True

    def decide(self, *arguments: Any) -> Decision:
        if self.broken:
            raise ZeroDivisionError("a fault of the policy's own")
        return parse("static:2").decide(*arguments)


async def test_a_policy_that_raises_ends_no_task() -> None:
    clock, policy = VirtualClock(), Raising()
    config = PlannerConfig(policy=policy)
    service = PlannerService(config, FlakyStore(), clock, "planner-1")
    service.start()
    # Where logs are not set up a traceback is drawn with all it holds, which takes seconds.
    with capture_logs() as logged:
        session = service.open(HELLO)
        await planned(service)
    assert [entry["event"] for entry in logged if entry["log_level"] == "warning"] == ["plan_held"]
    assert 'plans_held_total{reason="failed"} 1.0' in exported(service)
    policy.broken = False
    await clock.advance(1.0)
    service.report(session, make_report(1, make_rounds(4), make_cell()))
    plan = await session.take(1.0)
    assert plan is not None
    assert plan.drafters[0].draft_tokens[0] == 2
    await service.stop()


async def test_a_tick_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And stopping ends in order: streams are told, the store is closed."""
    clock, store = VirtualClock(), FlakyStore()
    service = started(store, clock)
    session = service.open(HELLO)
    ticks: list[float] = []

    def failing(now_s: float) -> list[Effect]:
        ticks.append(now_s)
        raise RuntimeError("tick")

    monkeypatch.setattr(service.planner, "on_tick", failing)
    await settled(clock, 0.5)
    assert len(ticks) >= 2
    monkeypatch.setattr(service.planner, "flush", failing)
    await service.stop()
    assert session.ended == "the planner is stopping"
    assert store.closed


async def test_between_two_plans_the_loop_goes_round() -> None:
    """Twelve workers have news at once; others are served after each plan, not after all."""
    service = started(FlakyStore(), VirtualClock())
    for number in range(12):
        service.open(make_hello(incarnation=f"w{number}", deployment=f"d{number}"))
    seen: set[int] = set()
    async with asyncio.timeout(5.0):
        while len(seen) < 12:
            seen.add(sum(w.plan is not None for w in service.planner.workers.values()))
            await asyncio.sleep(0)
    assert seen >= set(range(1, 12))
    await service.stop()
