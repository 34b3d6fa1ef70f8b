"""The Plan stream over real gRPC: order of messages, latency, refusals, half-open peers."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.assembly import PlannerProcess
from outrider_planner.rpc import SERVICE_NAME, servicer
from outrider_runtime.heartbeat import Heartbeat
from outrider_runtime.rpc import open_channel
from tests.integration.planner.streams import (
    WorkerStream,
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)


@pytest.fixture
async def planner() -> AsyncIterator[PlannerProcess]:
    async with running_planner() as process:
        yield process


@pytest.fixture
async def stream(planner: PlannerProcess) -> AsyncIterator[WorkerStream]:
    async with worker_stream(planner) as made:
        yield made


async def failure(stream: WorkerStream) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stream.next("plan")
    return failed.value


async def test_hello_is_welcomed_and_planned(stream: WorkerStream) -> None:
    await stream.say(hello=make_hello())
    plan = (await stream.next("plan")).plan
    welcome = stream.heard[0].welcome
    assert welcome.protocol_version == 1
    assert welcome.report_interval_ms == 250
    assert len(welcome.planner_incarnation) == 24
    assert plan.version == 1
    assert list(plan.requests_ladder) == [1, 2, 3, 4]
    assert len(plan.drafters[0].target_rows) == 4 * 5
    assert (plan.validity_ms, plan.grace_ms) == (5000, 5000)
    assert plan.drafters[0].draft_tokens[0] > 0


async def test_reports_change_the_plan_within_milliseconds(stream: WorkerStream) -> None:
    await stream.say(hello=make_hello())
    versions = [(await stream.next("plan")).plan.version]
    waits_s = []
    for sequence in range(1, 11):
        sent_s = time.perf_counter()
        accepted = 8 if sequence % 2 else 0
        await stream.say(reports=make_reports(sequence, accepted))
        versions.append((await stream.next("plan")).plan.version)
        waits_s.append(time.perf_counter() - sent_s)
    assert versions == list(range(1, 12))
    assert statistics.median(waits_s) < 0.05


async def test_heartbeats_go_both_ways_and_keep_a_quiet_stream(stream: WorkerStream) -> None:
    await stream.say(hello=make_hello())
    sequences = []
    for _ in range(2):
        await stream.beat()
        sequences.append((await stream.next("heartbeat")).heartbeat.sequence)
    assert sequences == [1, 2]


async def test_malformed_reports_are_counted_and_the_stream_goes_on(
    planner: PlannerProcess, stream: WorkerStream
) -> None:
    await stream.say(hello=make_hello())
    await stream.next("plan")
    await stream.say(reports=wire.StepReports(sequence=1, target_us=[2**64 - 1]))
    await stream.say(reports=wire.StepReports(sequence=2, requests=[1, 1], target_us=[5]))
    await stream.say(hello=make_hello())
    await stream.say(reports=make_reports(3, accepted=0))
    assert (await stream.next("plan")).plan.version == 2
    worker = planner.service.planner.workers["worker-1"]
    assert worker.rejected == {"malformed": 1}
    assert worker.rounds == 8


@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({"protocol_version": 7}, grpc.StatusCode.FAILED_PRECONDITION, "version 7"),
        ({"deployment": ""}, grpc.StatusCode.INVALID_ARGUMENT, "deployment"),
        ({"worker_incarnation": "a b"}, grpc.StatusCode.INVALID_ARGUMENT, "incarnation"),
    ],
)
async def test_hellos_that_cannot_be_served_are_refused_in_words(
    stream: WorkerStream, changes: dict[str, Any], code: grpc.StatusCode, word: str
) -> None:
    await stream.say(hello=make_hello(**changes))
    error = await failure(stream)
    assert error.code() == code
    assert word in (error.details() or "")


async def test_a_stream_must_begin_with_a_hello(stream: WorkerStream) -> None:
    await stream.beat()
    error = await failure(stream)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "hello" in (error.details() or "")


async def test_a_stream_that_never_says_hello_is_ended(
    stream: WorkerStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "HEARTBEAT_DEADLINE_S", 0.2)
    error = await failure(stream)
    assert (error.code(), error.details()) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "no hello within the deadline",
    )


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_the_token_nobody_talks(planner: PlannerProcess, token: str | None) -> None:
    async with worker_stream(planner, token) as stream:
        error = await failure(stream)
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    assert planner.service.planner.workers == {}


async def test_a_silent_worker_is_dropped_after_the_deadline(
    planner: PlannerProcess, stream: WorkerStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F04: a half-open peer sends nothing; its stream must not live for ever."""
    monkeypatch.setattr(servicer, "Heartbeat", partial(Heartbeat, deadline_s=0.3))
    monkeypatch.setattr(servicer, "_CHECK_S", 0.05)
    await stream.say(hello=make_hello())
    await stream.next("plan")
    error = await failure(stream)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert "deadline" in (error.details() or "")
    assert not planner.service.planner.workers["worker-1"].connected


async def test_a_pause_of_the_planner_itself_drops_nobody(
    planner: PlannerProcess, stream: WorkerStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What workers said meanwhile is queued, and is read before anybody counts as silent."""
    monkeypatch.setattr(servicer, "Heartbeat", partial(Heartbeat, deadline_s=0.3))
    monkeypatch.setattr(servicer, "_CHECK_S", 0.05)
    await stream.say(hello=make_hello())
    await stream.next("plan")
    for _ in range(2):
        await stream.beat()
        time.sleep(0.4)  # noqa: ASYNC251  (nothing of this process runs)
        await asyncio.sleep(0.05)
    assert planner.service.planner.workers["worker-1"].connected
    await stream.beat()
    assert (await stream.next("heartbeat")).heartbeat.sequence > 0


async def test_a_younger_stream_of_a_worker_takes_over(planner: PlannerProcess) -> None:
    async with worker_stream(planner) as older, worker_stream(planner) as younger:
        await older.say(hello=make_hello())
        await older.next("plan")
        await younger.say(hello=make_hello())
        assert (await younger.next("plan")).plan.version == 2
        error = await failure(older)
        assert "took over" in (error.details() or "")
        assert planner.service.planner.workers["worker-1"].connected


async def test_a_restarted_planner_plans_at_once_from_version_one() -> None:
    """Z01: a new stream has versions of its own, whatever clocks did in between."""
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        await stream.say(reports=make_reports(1, accepted=0))
        assert (await stream.next("plan")).plan.version == 2
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        assert (await stream.next("plan")).plan.version == 1
        await stream.say(reports=make_reports(2, accepted=0))
        assert (await stream.next("plan")).plan.version == 2


async def test_stopping_ends_streams_with_a_reason_and_quickly() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        began_s = time.monotonic()
        await process.stop()
        error = await failure(stream)
        assert "stopping" in (error.details() or "")
        assert time.monotonic() - began_s < 3.0


async def test_health_is_served_by_name(planner: PlannerProcess) -> None:
    async with open_channel(f"127.0.0.1:{planner.grpc.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
    assert SERVICE_NAME == "outrider.planner.v1.PlannerService"
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_many_workers_at_once_each_get_their_plans(planner: PlannerProcess) -> None:
    async def one(number: int) -> int:
        async with worker_stream(planner) as stream:
            name = f"worker-{number}"
            await stream.say(hello=make_hello(name, deployment=name))
            await stream.next("plan")
            await stream.say(reports=make_reports(1, accepted=0))
            return (await stream.next("plan")).plan.version

    versions = await asyncio.gather(*map(one, range(12)))
    assert set(versions) == {2}
