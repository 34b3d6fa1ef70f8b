"""Several planners at one store: settings, cost tables and warm starts; and the decision log."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.policies import parse
from outrider_planner.core.settings import DeploymentSettings
from outrider_planner.core.types import Plan
from outrider_planner.log.entries import decode
from outrider_planner.log.file import FileSink, read_lines
from outrider_planner.log.replay import Replay
from outrider_planner.log.stream import StreamSink, read_stream
from outrider_planner.service import PlannerService
from outrider_planner.sessions import Session
from outrider_planner.store.memory import MemoryStore
from outrider_runtime.clock import VirtualClock
from outrider_runtime.metrics import render
from tests.unit.planner.builders import make_cell, make_hello, make_report, make_rounds

HELLO = make_hello()
NEWCOMER = replace(HELLO, worker_incarnation="worker-2", cost_table=None)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """What was logged meanwhile."""
    with capture_logs() as entries:
        yield entries


async def passed(clock: VirtualClock, seconds: float) -> None:
    """Moves time, and gives the stores' tasks their turns."""
    await clock.advance(seconds)
    for _ in range(40):
        await asyncio.sleep(0)


def started(name: str, store: MemoryStore, clock: VirtualClock) -> PlannerService:
    service = PlannerService(PlannerConfig(), store, clock, name)
    service.start()
    return service


async def planned(session: Session) -> Plan:
    plan = await session.take(2.0)
    assert plan is not None
    return plan


async def test_settings_reach_the_other_planner_and_its_workers() -> None:
    clock, store = VirtualClock(), MemoryStore(lambda: 0.0)
    here, there = started("a", store, clock), started("b", store, clock)
    here.open(HELLO)
    session = there.open(replace(HELLO, worker_incarnation="worker-2"))
    assert (await planned(session)).policy == "two_stage"
    kept = here.put_settings("demo", DeploymentSettings(policy="static:3"))
    await passed(clock, 11.0)
    await passed(clock, 0.5)
    plan = await planned(session)
    assert (plan.policy, kept.version) == ("static:3", 1)
    assert there.planner.settings.of("demo").settings == kept
    await here.stop()
    await there.stop()


async def test_of_two_changes_at_once_all_planners_keep_one() -> None:
    clock, store = VirtualClock(), MemoryStore(lambda: 0.0)
    here, there = started("a", store, clock), started("b", store, clock)
    here.open(HELLO)
    there.open(replace(HELLO, worker_incarnation="worker-2"))
    here.put_settings("demo", DeploymentSettings(policy="static:1"))
    there.put_settings("demo", DeploymentSettings(policy="static:2"))
    await passed(clock, 11.0)
    await passed(clock, 0.5)
    policies = {s.planner.settings.of("demo").policy.name for s in (here, there)}
    assert len(policies) == 1
    await here.stop()
    await there.stop()


async def test_a_newcomer_starts_from_what_others_measured_and_learned(
    logged: list[Any],
) -> None:
    clock, store = VirtualClock(), MemoryStore(lambda: 0.0)
    here = started("a", store, clock)
    session = here.open(HELLO)
    await planned(session)
    await passed(clock, 1.0)
    cell = make_cell((200, 200), (200, 200), (190, 180))
    here.report(session, make_report(1, make_rounds(100), cell))
    await passed(clock, 2.0)
    await here.stop()
    there = started("b", store, clock)
    young = there.open(NEWCOMER)
    plan = await planned(young)
    assert "the stored cost table of identity" in plan.reason
    assert max(plan.drafters[0].draft_tokens) > 0
    async with asyncio.timeout(5.0):
        while not (told := [e["why"] for e in logged if e["event"] == "warm_start"]):
            await passed(clock, 0.1)
    decision = there.planner.workers["worker-2"].decision
    assert decision is not None
    assert len(told) == 1
    assert "warm start from 400 verified drafts of this deployment and the stored" in told[0]
    assert decision.reason.endswith(told[0])
    other = make_hello(incarnation="worker-3", drafter="other", cost_table=None)
    assert "no cost table" in (await planned(there.open(other))).reason
    await there.stop()


async def test_the_decision_log_of_a_service_replays(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "decisions.jsonl"
    service = PlannerService(
        PlannerConfig(), MemoryStore(lambda: 0.0), clock, "a", lambda _link: FileSink(path)
    )
    service.start()
    session = service.open(HELLO)
    await planned(session)
    for sequence in range(1, 6):
        await passed(clock, 1.0)
        cell = make_cell((32, 32), (32, 32), (0, 0))
        service.report(session, make_report(sequence, make_rounds(16), cell))
        await asyncio.sleep(0.01)
    service.put_settings("demo", DeploymentSettings(policy="static:1"))
    await asyncio.sleep(0.01)
    await service.stop()
    service.refresh_metrics()
    text = render(service.metrics.registry).decode()
    entries = [decode(line) for line in read_lines(path)]
    assert f"outrider_planner_decision_log_written_entries {len(entries)}.0" in text
    assert "outrider_planner_decision_log_lost_entries 0.0" in text
    replay = Replay(["off"], parse)
    samples = list(replay.play(entries))
    assert replay.agreement.same == service.planner.workers["worker-1"].version >= 3
    assert (replay.agreement.different, replay.agreement.lost) == (0, 0)
    assert samples


async def test_the_decision_log_goes_to_the_store() -> None:
    clock, store = VirtualClock(), MemoryStore(lambda: 0.0)
    service = PlannerService(
        PlannerConfig(),
        store,
        clock,
        "a",
        lambda link: StreamSink(link.log, lambda: link.log_dropped),
    )
    service.start()
    await planned(service.open(HELLO))
    await service.stop()
    kinds = [decode(line)["k"] async for line in read_stream(store)]
    assert kinds[:2] == ["start", "hello"]
    assert "plan" in kinds


async def test_what_shadows_predict_is_exported_while_they_are_asked_for() -> None:
    clock = VirtualClock()
    service = started("a", MemoryStore(lambda: 0.0), clock)
    session = service.open(HELLO)
    await planned(session)
    kept = service.put_settings("demo", DeploymentSettings(shadows=("off", "static:4")))
    await asyncio.sleep(0.02)
    for _ in range(4):
        await passed(clock, 0.5)
    service.refresh_metrics()
    text = render(service.metrics.registry).decode()
    assert 'shadow_rate_vs_off_ratio{policy="off",worker="worker-1"} 1.0' in text
    assert 'shadow_rate_tokens_per_second{policy="static:4",worker="worker-1"}' in text
    service.put_settings("demo", replace(kept, shadows=()))
    await asyncio.sleep(0.02)
    await passed(clock, 0.5)
    service.refresh_metrics()
    assert "shadow_rate_vs_off_ratio{" not in render(service.metrics.registry).decode()
    await service.stop()
