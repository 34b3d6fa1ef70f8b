"""A worker's side of the Plan stream, on a real channel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.common.v1 import common_pb2 as common
from outrider.planner.v1 import planner_pb2 as wire
from outrider.planner.v1 import planner_pb2_grpc as wire_grpc
from outrider_planner.assembly import PlannerProcess, start
from outrider_planner.settings import PlannerSettings
from outrider_runtime.rpc import open_channel, token_metadata

TOKEN = "planner-test-token"


def make_hello(incarnation: str = "worker-1", **changes: object) -> wire.Hello:
    hello = wire.Hello(
        deployment="demo",
        worker_incarnation=incarnation,
        protocol_version=1,
        row_buckets=[1, 2, 4, 8, 16, 32],
    )
    hello.identity.model = "tiny"
    hello.limits.max_running_requests = 4
    hello.limits.max_rows_per_forward = 32
    hello.limits.max_draft_tokens = 4
    hello.drafters.add(name="ngram", cost=1, max_draft_tokens=4, score_bins=1)
    hello.cost_table.target.add(
        context_tokens=128,
        rows=[1, 2, 4, 8, 16, 32],
        median_us=[11_000, 12_000, 14_000, 18_000, 26_000, 42_000],
    )
    costs = hello.cost_table.drafters.add(drafter="ngram")
    costs.draft.add(context_tokens=128, requests=[1], draft_tokens=[4], median_us=[400])
    for name, value in changes.items():
        setattr(hello, name, value)
    return hello


def make_reports(sequence: int, accepted: int, rounds: int = 8) -> wire.StepReports:
    """Rounds of one request that verified two drafts each, ``accepted`` of 8 at either position."""
    ones = [1] * rounds
    reports = wire.StepReports(
        sequence=sequence,
        requests=ones,
        carried_draft_tokens=[2] * rounds,
        pool_tokens=[2] * rounds,
        target_rows=[3] * rounds,
        bucket_rows=[3] * rounds,
        request_context_tokens=[128] * rounds,
        target_us=[13_000] * rounds,
        feed_us=[0] * rounds,
        draft_us=[200] * rounds,
        exposed_host_us=[100] * rounds,
        emitted_tokens=ones,
        accepted_tokens=[0] * rounds,
        next_draft_tokens=[2] * rounds,
    )
    reports.cells.add(
        drafter="ngram",
        request_class="greedy",
        asked=rounds,
        asked_by_position=[rounds, rounds],
        drafted=[rounds, rounds],
        verified=[rounds, rounds],
        accepted=[accepted, accepted],
    )
    return reports


class WorkerStream:
    """Sends what it is told and keeps what it hears."""

    def __init__(self, target: str, token: str | None) -> None:
        self._channel = open_channel(target)
        stub = wire_grpc.PlannerServiceStub(self._channel)
        self.call = stub.Plan(metadata=token_metadata(token))
        self.heard: list[wire.PlanResponse] = []
        self._beats = 0

    async def say(self, **message: object) -> None:
        await self.call.write(wire.PlanRequest(**message))  # type: ignore[arg-type]

    async def beat(self) -> None:
        self._beats += 1
        await self.say(heartbeat=common.Heartbeat(sequence=self._beats))

    async def next(self, kind: str, limit_s: float = 5.0) -> wire.PlanResponse:
        """The next message of a kind; others are kept and passed over."""
        async with asyncio.timeout(limit_s):
            async for message in self.call:
                self.heard.append(message)
                if message.HasField(kind):  # type: ignore[arg-type]
                    return message
        raise AssertionError(f"the stream ended before a {kind}")

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


@asynccontextmanager
async def running_planner(**changes: object) -> AsyncIterator[PlannerProcess]:
    settings = PlannerSettings(**{"grpc_port": 0, "http_port": 0, "token": TOKEN, **changes})  # type: ignore[arg-type]
    process = await start(settings)
    try:
        yield process
    finally:
        await process.stop()


@asynccontextmanager
async def worker_stream(
    process: PlannerProcess, token: str | None = TOKEN
) -> AsyncIterator[WorkerStream]:
    stream = WorkerStream(f"127.0.0.1:{process.grpc.port}", token)
    try:
        yield stream
    finally:
        await stream.close()
