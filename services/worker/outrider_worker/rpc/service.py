"""The gRPC servicer: Attach, Describe, Assets.

Lets each router's requests in through its entrance and brings the news to its outbox. Knows no
tensors and no schedule; a stream that ends, for whatever reason, takes its requests with it.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from outrider.common.v1 import common_pb2 as common
from outrider.worker.v1 import worker_pb2 as wire
from outrider.worker.v1 import worker_pb2_grpc as wire_grpc
from outrider_runtime.heartbeat import Heartbeat
from outrider_runtime.logs import get_logger
from outrider_runtime.rpc import HEARTBEAT_INTERVAL_S
from outrider_runtime.tracing import NoTracer, Tracer
from outrider_worker.constrain import GrammarCompiler
from outrider_worker.engine.engine import Engine
from outrider_worker.engine.types import Failure, TokenNews
from outrider_worker.replica import Replica
from outrider_worker.rpc.convert import news_to_wire
from outrider_worker.rpc.describe import asset_bytes, chat_template, describe
from outrider_worker.rpc.entrance import Entrance
from outrider_worker.rpc.outbox import Outbox
from outrider_worker.rpc.traces import RequestTraces

SERVICE_NAME = wire.DESCRIPTOR.services_by_name["WorkerService"].full_name
_ASSET_CHUNK_BYTES = 256 * 1024
_log = get_logger(__name__)


class WorkerRpc(wire_grpc.WorkerServiceServicer):
    """One replica offered to any number of routers."""

    def __init__(
        self,
        replica: Replica,
        engine: Engine,
        grammars: GrammarCompiler | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """grammars: None where the model cannot be held to one.

        Raises ModelError where the model's chat template cannot be read.
        """
        self._replica = replica
        self._chat_template = chat_template(replica.folder)
        self._engine = engine
        self._grammars = grammars
        self._traces = RequestTraces(tracer or NoTracer())
        self._loop = asyncio.get_running_loop()
        self._outboxes: dict[str, Outbox] = {}
        self._numbers = itertools.count(1)

    def register(self, server: grpc.aio.Server) -> None:
        wire_grpc.add_WorkerServiceServicer_to_server(self, server)

    def deliver(self, round_: int, news: Sequence[TokenNews]) -> None:
        """The engine's news sink; called on the engine's thread."""
        for item in news:
            if item.end is not None:
                _log_end(item)
                self._traces.end(item)
        self._loop.call_soon_threadsafe(self._dispatch, round_, news)

    def _dispatch(self, round_: int, news: Sequence[TokenNews]) -> None:
        by_owner: dict[str, list[TokenNews]] = {}
        for item in news:
            by_owner.setdefault(item.key.owner, []).append(item)
        for owner, items in by_owner.items():
            outbox = self._outboxes.get(owner)
            if outbox is not None:
                outbox.put(self._tokens(round_, items))

    def _tokens(self, round_: int, news: Sequence[TokenNews]) -> wire.AttachResponse:
        tokens = wire.Tokens(
            worker_incarnation=self._replica.incarnation,
            round=round_,
            requests=[
                news_to_wire(item, self._replica.drafter_index(item.drafter)) for item in news
            ],
        )
        return wire.AttachResponse(tokens=tokens)

    async def Attach(  # noqa: N802 - the wire's name
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[wire.AttachResponse]:
        owner = f"{context.peer()}#{next(self._numbers)}"
        outbox = self._outboxes[owner] = Outbox()
        heartbeat = Heartbeat(time.monotonic())
        entrance = self._entrance(owner, outbox)
        reader = asyncio.create_task(self._read(request_iterator, entrance, heartbeat))
        _log.info("router_attached", router=owner)
        try:
            while not reader.done():
                now_s = time.monotonic()
                if outbox.overflowed or heartbeat.expired(now_s):
                    await context.abort(*_cut_reason(outbox))
                sequence = heartbeat.due(now_s)
                if sequence is not None:
                    yield wire.AttachResponse(pong=common.Heartbeat(sequence=sequence))
                message = await outbox.get(HEARTBEAT_INTERVAL_S / 2)
                if message is not None:
                    yield message
            await _raise_failure(reader, context)
        finally:
            reader.cancel()
            del self._outboxes[owner]
            entrance.close()
            self._traces.drop(owner)
            _log.info("router_detached", router=owner)

    def _entrance(self, owner: str, outbox: Outbox) -> Entrance:
        def answer(news: TokenNews) -> None:
            self._traces.end(news)
            outbox.put(self._tokens(self._engine.rounds, [news]))

        inbox, begin = self._engine.inbox, self._traces.begin
        return Entrance(owner, self._replica, inbox, self._grammars, answer, begin)

    async def _read(self, requests: Any, entrance: Entrance, heartbeat: Heartbeat) -> None:
        async for request in requests:
            heartbeat.heard(time.monotonic())
            match request.WhichOneof("message"):
                case "submit":
                    entrance.submit(request.submit)
                case "cancel":
                    entrance.cancel(request.cancel)

    async def Describe(  # noqa: N802
        self, request: wire.DescribeRequest, context: Any
    ) -> wire.DescribeResponse:
        return describe(self._replica, self._chat_template, grammars=self._grammars is not None)

    async def Assets(  # noqa: N802
        self, request: wire.AssetsRequest, context: Any
    ) -> AsyncIterator[wire.AssetsResponse]:
        try:
            content = asset_bytes(self._replica.folder, request.kind)
        except FileNotFoundError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        for start in range(0, len(content), _ASSET_CHUNK_BYTES):
            yield wire.AssetsResponse(chunk=content[start : start + _ASSET_CHUNK_BYTES])


async def _raise_failure(reader: "asyncio.Task[None]", context: Any) -> None:
    """A stream whose reading broke ends with an error that says so, not as if all were well."""
    failure = None if reader.cancelled() else reader.exception()
    if isinstance(failure, Exception):
        _log.error("router_stream_failed", exc_info=failure)
        await context.abort(grpc.StatusCode.INTERNAL, f"cannot read the stream: {failure}")


def _log_end(news: TokenNews) -> None:
    """One line for each request, under the id that the router's lines carry too."""
    end, totals = news.end, news.totals
    _log.info(
        "request_ended",
        request_id=news.key.request_id,
        choice=news.key.choice_index,
        outcome=end.code.value if isinstance(end, Failure) else end.reason.value if end else "",
        tokens=news.emitted_tokens,
        drafted=totals.drafted_tokens if totals else 0,
        verified=totals.verified_tokens if totals else 0,
        accepted=totals.accepted_tokens if totals else 0,
    )


def _cut_reason(outbox: Outbox) -> tuple[grpc.StatusCode, str]:
    if outbox.overflowed:
        return grpc.StatusCode.RESOURCE_EXHAUSTED, "the router reads too slowly"
    return grpc.StatusCode.DEADLINE_EXCEEDED, "no sign of life from the router"
