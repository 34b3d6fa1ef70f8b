"""Keeps one stream to a planner: hello, reports and heartbeats up, plans down.

Runs on the worker's event loop. The engine never waits for it: reports come out of a ring, plans
go into the plan book. A lost stream is opened again with jitter, at the preferred planner or the
next one that answers; until then the book's validity and grace decide what holds.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from outrider.common.v1 import common_pb2 as common
from outrider.planner.v1 import planner_pb2 as wire
from outrider.planner.v1 import planner_pb2_grpc as wire_grpc
from outrider_runtime.heartbeat import Heartbeat, ReconnectBackoff
from outrider_runtime.logs import get_logger
from outrider_runtime.rpc import HEARTBEAT_INTERVAL_S, token_metadata
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.guard import GuardSnapshot
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.tally import RecordRing
from outrider_worker.identity import EngineIdentity
from outrider_worker.planner_client.convert import (
    costs_to_wire,
    plan_from_wire,
    reports_to_wire,
)
from outrider_worker.planner_client.targets import PlannerTargets
from outrider_worker.speculate.drafter import DrafterTraits
from outrider_worker.wire import identity_to_wire, limits_to_wire, traits_to_wire

if TYPE_CHECKING:
    _Call = grpc.aio.StreamStreamCall[wire.PlanRequest, wire.PlanResponse]

PROTOCOL_VERSION = 1
_FIRST_REPORT_INTERVAL_S = 0.25
_log = get_logger(__name__)


@dataclass(frozen=True)
class Introduction:
    """What the worker tells the planner about itself, once per stream."""

    deployment: str
    incarnation: str
    address: str
    identity: EngineIdentity
    limits: SchedulerLimits
    max_draft_tokens: int
    kv_capacity_tokens: int
    row_buckets: tuple[int, ...]
    drafters: tuple[DrafterTraits, ...]
    costs: CostTable

    def hello(self) -> wire.Hello:
        return wire.Hello(
            deployment=self.deployment,
            worker_incarnation=self.incarnation,
            worker_address=self.address,
            protocol_version=PROTOCOL_VERSION,
            identity=identity_to_wire(self.identity),
            limits=limits_to_wire(self.limits, self.max_draft_tokens, self.kv_capacity_tokens),
            row_buckets=self.row_buckets,
            pads_rows=False,
            drafters=[traits_to_wire(traits) for traits in self.drafters],
            cost_table=costs_to_wire(self.costs),
        )


@dataclass
class PlannerLink:
    """Counters of the connection, for the metrics."""

    target: str = ""
    connected: bool = False
    connections: int = 0
    plans_applied: int = 0
    plans_malformed: int = 0
    clamps: int = 0
    report_interval_s: float = field(default=_FIRST_REPORT_INTERVAL_S)


class PlannerClient:
    """`run` until cancelled."""

    def __init__(
        self,
        targets: PlannerTargets,
        token: str | None,
        introduction: Introduction,
        ring: RecordRing,
        book: PlanBook,
        guard: Callable[[], GuardSnapshot],
    ) -> None:
        self.link = PlannerLink()
        self._targets = targets
        self._metadata = token_metadata(token)
        self._introduction = introduction
        self._ring = ring
        self._book = book
        self._guard = guard
        self._sequence = 0

    async def run(self) -> None:
        """Keep a stream open; every way it can end leads to the next attempt."""
        backoff = ReconnectBackoff()
        while True:
            try:
                await self._one_of(await self._targets.order(), backoff)
            except OSError as error:  # no name is known
                _log.warning("no_planner", reason=str(error))
                await asyncio.sleep(backoff.next_wait_s())

    async def _one_of(self, order: list[str], backoff: ReconnectBackoff) -> None:
        """Down the order until one has talked to us; when its stream ends, the order is new."""
        for target in order:
            before, self.link.target = self.link.connections, target
            try:
                async with self._targets.channel(target) as channel:
                    await self._converse(channel, target, backoff)
            except Exception as error:  # a stream can end in many ways, none ends the client
                _log.info("planner_stream_ended", planner=target, reason=_reason(error))
            finally:
                self.link.connected = False
            await asyncio.sleep(backoff.next_wait_s())
            if self.link.connections > before:
                return

    async def _converse(
        self, channel: grpc.aio.Channel, target: str, backoff: ReconnectBackoff
    ) -> None:
        stream = self._book.open_stream()
        call = wire_grpc.PlannerServiceStub(channel).Plan(metadata=self._metadata)
        heartbeat = Heartbeat(time.monotonic())
        tasks = {
            asyncio.create_task(self._read(call, stream, heartbeat, backoff)),
            asyncio.create_task(self._write(call, heartbeat)),
            # On its own: a write to a peer that has stopped reading may never return.
            asyncio.create_task(_watch(heartbeat)),
            asyncio.create_task(self._leave(target)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _leave(self, target: str) -> None:
        """End the stream once the planner this worker belongs to serves again."""
        better = await self._targets.better_than(target)
        _log.info("moving_to_preferred_planner", present=target, preferred=better)

    async def _read(
        self, call: "_Call", stream: int, heartbeat: Heartbeat, backoff: ReconnectBackoff
    ) -> None:
        async for response in call:
            now_s = time.monotonic()
            heartbeat.heard(now_s)
            match response.WhichOneof("message"):
                case "welcome":
                    backoff.reset()
                    self.link.connected = True
                    self.link.connections += 1
                    self._set_interval(response.welcome.report_interval_ms / 1e3)
                    _log.info("planner_connected", planner=self.link.target)
                case "plan":
                    self._apply(response.plan, stream, now_s)
                case "heartbeat":
                    self._book.renew(stream, now_s)

    def _apply(self, message: wire.Plan, stream: int, now_s: float) -> None:
        try:
            plan = plan_from_wire(message)
        except ValueError as error:
            self.link.plans_malformed += 1
            _log.warning("malformed_plan_ignored", version=message.version, reason=str(error))
            return
        if self._book.offer(stream, plan, now_s):
            self.link.plans_applied += 1
            self._set_interval(plan.report_interval_s)
            _log.debug("plan_applied", version=plan.version, policy=plan.policy, why=plan.reason)

    def _set_interval(self, seconds: float) -> None:
        if seconds > 0:
            self.link.report_interval_s = min(max(seconds, 0.05), 5.0)

    async def _write(self, call: "_Call", heartbeat: Heartbeat) -> None:
        """The hello, then reports at the planner's interval and heartbeats in quiet seconds."""
        await call.write(wire.PlanRequest(hello=self._introduction.hello()))
        while True:
            sequence = heartbeat.due(time.monotonic())
            if sequence is not None:
                beat = common.Heartbeat(sequence=sequence)
                await call.write(wire.PlanRequest(heartbeat=beat))
            if await self._send_reports(call):
                heartbeat.sent(time.monotonic())
            await asyncio.sleep(min(self.link.report_interval_s, HEARTBEAT_INTERVAL_S))

    async def _send_reports(self, call: "_Call") -> bool:
        """What the ring holds; False where there was nothing to say."""
        records = self._ring.take()
        self.link.clamps += sum(record.clamped for record in records)
        if not any(record.requests or record.outcomes for record in records):
            return False
        self._sequence += 1
        message = reports_to_wire(
            self._sequence, records, self._guard(), self.link.clamps, self._ring.dropped_rounds
        )
        await call.write(wire.PlanRequest(reports=message))
        return True


async def _watch(heartbeat: Heartbeat) -> None:
    """End the stream once the planner has been silent for the deadline."""
    while not heartbeat.expired(time.monotonic()):
        await asyncio.sleep(HEARTBEAT_INTERVAL_S / 2)
    raise TimeoutError("no sign of life from the planner")


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
