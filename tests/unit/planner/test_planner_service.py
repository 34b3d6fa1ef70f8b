"""The service around the core on a virtual clock: debounce, store outages, metrics."""

import asyncio
from collections.abc import Mapping

import pytest

from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.planner import scopes
from outrider_planner.service import PlannerService
from outrider_planner.store.base import Batch, StoreUnavailableError
from outrider_planner.store.memory import MemoryStore
from outrider_planner.store.outbox import Outbox
from outrider_runtime.clock import VirtualClock
from outrider_runtime.metrics import render
from tests.unit.planner.builders import make_cell, make_hello, make_report, make_rounds

HELLO = make_hello()


class FlakyStore(MemoryStore):
    """Applies batches and may lose the answer, or be away altogether."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.away = False
        self.lose_answer = False
        self.sent: list[Batch] = []

    async def add(self, scope: str, batch: Batch) -> bool:
        if self.away:
            raise StoreUnavailableError("away")
        self.sent.append(batch)
        applied = await super().add(scope, batch)
        if self.lose_answer:
            raise StoreUnavailableError("no answer")
        return applied

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        if self.away:
            raise StoreUnavailableError("away")
        return await super().buckets(scope)


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


async def test_a_slow_reader_gets_the_newest_plan_only() -> None:
    clock = VirtualClock()
    service = started(FlakyStore(), clock)
    session = service.open(HELLO)
    for sequence in range(1, 40):
        await clock.advance(1.0)
        accepted = 4 if sequence < 20 else 0
        cell = make_cell((8, 8), (8, 8), (accepted, accepted))
        service.report(session, make_report(sequence, make_rounds(4), cell))
        service._replan()
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
    assert b"outrider_planner_store_up 0.0" in render(service.metrics.registry)
    assert service.planner.workers["worker-1"].rounds == 20
    store.away = False
    await settled(clock, 2.0)
    assert b"outrider_planner_store_up 1.0" in render(service.metrics.registry)
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
        service._replan()
    service.refresh_metrics()
    text = render(service.metrics.registry).decode()
    for name in (
        "draft_length",
        "verify_rows",
        "predicted_accepted_tokens",
        "realised_accepted_tokens",
        "predicted_round_seconds",
        "measured_round_seconds",
        "rate_vs_off_ratio",
        "plan_age_seconds",
        "reports_received_total",
        "plans_pushed_total",
        "reports_dropped_total",
        "guard_trips_total",
    ):
        assert f"outrider_planner_{name}{{" in text, name
    assert "NaN" not in text
    assert "_created" not in text
    service.close(session)
    service.planner.workers.clear()
    service.refresh_metrics()
    assert 'worker="worker-1"' not in render(service.metrics.registry).decode()
    await service.stop()


@pytest.mark.parametrize("known", [True, False])
def test_a_batch_is_frozen_until_it_is_answered(known: bool) -> None:
    outbox = Outbox("w")
    outbox.put("s", {"a": 1})
    first = outbox.batch("s")
    assert first == Batch("w", 1, {"a": 1})
    outbox.put("s", {"a": 2, "b": 1})
    assert outbox.batch("s") == first
    assert outbox.scopes() == ["s"]
    assert first is not None
    outbox.acknowledge("s", first)
    assert outbox.batch("s") == Batch("w", 2, {"a": 2, "b": 1})
    if known:
        outbox.acknowledge("s", first)
        assert outbox.batch("s") == Batch("w", 2, {"a": 2, "b": 1})
    assert outbox.batch("elsewhere") is None
