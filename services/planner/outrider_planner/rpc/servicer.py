"""The Plan stream: hello, then reports and heartbeats in, plans and heartbeats out.

Knows the order of messages and how a stream ends. A stream on which nothing is heard for the
deadline is dropped: a half-open connection reports no error by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc

from outrider.common.v1 import common_pb2 as common
from outrider.planner.v1 import planner_pb2 as wire
from outrider.planner.v1 import planner_pb2_grpc as wire_grpc
from outrider_planner.core.hellos import (
    CapacityError,
    HelloRefusedError,
    NameTakenError,
    ProtocolVersionError,
)
from outrider_planner.core.types import PROTOCOL_VERSION, Hello
from outrider_planner.rpc.codec import WireError, hello_from_wire, reports_from_wire
from outrider_planner.rpc.plans import PlanEncoder
from outrider_planner.service import PlannerService
from outrider_planner.sessions import Session
from outrider_runtime.heartbeat import Heartbeat
from outrider_runtime.rpc import HEARTBEAT_DEADLINE_S

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[wire.PlanRequest, wire.PlanResponse]

SERVICE_NAME = wire.DESCRIPTOR.services_by_name["PlannerService"].full_name
_CHECK_S = 1.0
_MALFORMED = grpc.StatusCode.INVALID_ARGUMENT
_REFUSALS = {
    ProtocolVersionError: grpc.StatusCode.FAILED_PRECONDITION,
    CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NameTakenError: grpc.StatusCode.ALREADY_EXISTS,
}


class PlannerServicer(wire_grpc.PlannerServiceServicer):
    """Adapts streams to sessions of the service."""

    def __init__(self, service: PlannerService) -> None:
        self._service = service
        self._encoder = PlanEncoder()

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        wire_grpc.add_PlannerServiceServicer_to_server(self, server)

    async def Plan(  # type: ignore[override]  # noqa: N802 (a coroutine that writes by context)
        self, requests: AsyncIterator[wire.PlanRequest], context: Context
    ) -> None:
        """One worker's stream, from its hello to its end."""
        session = await self._opened(await self._first(requests, context), context)
        try:
            await context.write(self._welcome())
            await self._converse(session, requests, context)
        finally:
            self._service.close(session)
        if session.ended:
            await context.abort(grpc.StatusCode.UNAVAILABLE, session.ended)

    async def _first(self, requests: AsyncIterator[wire.PlanRequest], context: Context) -> Hello:
        """The hello, which must come first and within the deadline."""
        try:
            async with asyncio.timeout(HEARTBEAT_DEADLINE_S):
                message = await anext(requests, None)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello within the deadline")
        if message is None or not message.HasField("hello"):
            text = "the first message of a stream must be a hello"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return hello_from_wire(message.hello)

    async def _opened(self, hello: Hello, context: Context) -> Session:
        try:
            return self._service.open(hello)
        except HelloRefusedError as error:
            await context.abort(_REFUSALS.get(type(error), _MALFORMED), str(error))

    async def _converse(
        self,
        session: Session,
        requests: AsyncIterator[wire.PlanRequest],
        context: Context,
    ) -> None:
        heartbeat = Heartbeat(self._service.now_s())
        tasks = {
            asyncio.create_task(self._read(session, heartbeat, requests)),
            asyncio.create_task(self._write(session, heartbeat, context)),
            # On its own: a write to a peer that has stopped reading may never return.
            asyncio.create_task(self._watch(session, heartbeat)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(
        self, session: Session, heartbeat: Heartbeat, requests: AsyncIterator[wire.PlanRequest]
    ) -> None:
        """Until the worker ends its side."""
        async for message in requests:
            heartbeat.heard(self._service.now_s())
            if message.HasField("reports"):
                try:
                    self._service.report(session, reports_from_wire(message.reports))
                except WireError:
                    self._service.malformed()
            elif not message.HasField("heartbeat"):
                self._service.malformed()

    async def _write(self, session: Session, heartbeat: Heartbeat, context: Context) -> None:
        """Plans as they come, heartbeats in between; either renews the plan's validity."""
        while session.ended is None:
            sequence = heartbeat.due(self._service.now_s())
            if sequence is not None:
                beat = common.Heartbeat(sequence=sequence)
                await context.write(wire.PlanResponse(heartbeat=beat))
            plan = await session.take(heartbeat.wait_s(self._service.now_s()))
            if plan is not None:
                await context.write(self._encoder.response(plan))
                heartbeat.sent(self._service.now_s())

    async def _watch(self, session: Session, heartbeat: Heartbeat) -> None:
        """Ends the session once the worker is silent; a pause of this process does not count."""
        while session.ended is None and not heartbeat.expired(self._service.now_s()):
            await asyncio.sleep(_CHECK_S)
        session.ended = session.ended or "nothing was heard from the worker for the deadline"

    def _welcome(self) -> wire.PlanResponse:
        return wire.PlanResponse(
            welcome=wire.Welcome(
                planner_incarnation=self._service.incarnation,
                protocol_version=PROTOCOL_VERSION,
                report_interval_ms=self._service.report_interval_ms,
            )
        )
