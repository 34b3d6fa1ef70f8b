"""A whole worker on the tiny model, inside the test's event loop, behind real gRPC."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from outrider.common.v1 import common_pb2 as common
from outrider.worker.v1 import worker_pb2 as wire
from outrider.worker.v1 import worker_pb2_grpc as wire_grpc
from outrider_runtime.rpc import open_channel, token_metadata
from outrider_worker.assembly import assemble
from outrider_worker.engine.orders import RoundOrder
from outrider_worker.runner import Runner, Step
from outrider_worker.service import Worker
from outrider_worker.settings import WorkerSettings
from tests.support.tiny_models import shared_tiny_llama

TOKEN = "a-token-for-tests"


def tiny_settings(**overrides: Any) -> WorkerSettings:
    """Settings of a small, quick worker on free ports."""
    values: dict[str, Any] = {
        "model": str(shared_tiny_llama()),
        "served_name": "tiny",
        "planner": "",
        "port": 0,
        "metrics_port": 0,
        "threads": 1,
        "context": 512,
        "kv_gib": 0.01,
        "max_rows": 32,
        "max_running": 16,
        "token": TOKEN,
    }
    return WorkerSettings(**{**values, **overrides})


class _Slowed(Runner):
    """A runner whose rounds take longer, for tests that need streams to last."""

    def __init__(self, inner: Runner, extra_s: float) -> None:
        self.__dict__.update(inner.__dict__)
        self._extra_s = extra_s

    def begin(self, order: RoundOrder | None) -> Step:
        if order is not None:
            time.sleep(self._extra_s)
        return super().begin(order)


@asynccontextmanager
async def running_worker(
    extra_round_s: float = 0.0,
    on_failure: Callable[[], None] = lambda: None,
    **overrides: Any,
) -> AsyncIterator[Worker]:
    """A worker that is ready; stopped, with a short drain, at the end."""
    settings = tiny_settings(**overrides)
    assembly = await asyncio.to_thread(assemble, settings)
    if extra_round_s:
        slowed = replace(assembly.parts, runner=_Slowed(assembly.parts.runner, extra_round_s))
        assembly = replace(assembly, parts=slowed)
    worker = await Worker.start(settings, assembly, on_failure=on_failure)
    try:
        yield worker
    finally:
        await worker.stop(drain_limit_s=0.0)


class Router:
    """The router's end of an Attach stream: submit, cancel, and gather what comes back."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.ids: dict[str, list[int]] = {}
        self.ends: dict[str, wire.RequestTokens] = {}
        self.pongs = 0
        self.tokens_messages = 0
        self._ended = asyncio.Condition()
        self._writing = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    async def submit(
        self, request_id: str, prompt_ids: Sequence[int], max_tokens: int = 16, **fields: Any
    ) -> None:
        """Send a Submit; `sampling` fields go by their own names, other fields by theirs."""
        message = wire.Submit(request_id=request_id, prompt_ids=prompt_ids, **fields)
        if not message.sampling.max_tokens:
            message.sampling.max_tokens = max_tokens
        await self._write(wire.AttachRequest(submit=message))

    async def cancel(self, request_id: str, choice_index: int | None = None) -> None:
        """Cancel one choice of a request, or all of them."""
        cancel = wire.Cancel(request_id=request_id, choice_index=choice_index)
        await self._write(wire.AttachRequest(cancel=cancel))

    async def end(self, request_id: str, limit_s: float = 20.0) -> wire.RequestTokens:
        """Wait for a request's last message."""
        async with asyncio.timeout(limit_s), self._ended:
            await self._ended.wait_for(lambda: request_id in self.ends)
        return self.ends[request_id]

    async def _read(self) -> None:
        async for message in self._call:
            self.pongs += message.HasField("pong")
            self.tokens_messages += message.HasField("tokens")
            for item in message.tokens.requests:
                assert item.request_id not in self.ends, "news after the end"
                self.ids.setdefault(item.request_id, []).extend(item.token_ids)
                if item.WhichOneof("end"):
                    async with self._ended:
                        self.ends[item.request_id] = item
                        self._ended.notify_all()

    async def _beat(self) -> None:
        for sequence in itertools.count(1):
            await self._write(wire.AttachRequest(ping=common.Heartbeat(sequence=sequence)))
            await asyncio.sleep(1.0)

    async def _write(self, message: wire.AttachRequest) -> None:
        async with self._writing:  # a stream takes one write at a time
            await self._call.write(message)

    @property
    def reading(self) -> "list[asyncio.Task[None]]":
        """The task that ends when the stream does."""
        return self._tasks[:1]

    def stop_beating(self) -> None:
        self._tasks[1].cancel()

    async def detach(self) -> None:
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def attached(port: int, token: str | None = TOKEN) -> AsyncIterator[Router]:
    """A router attached to the worker on that port."""
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call = wire_grpc.WorkerServiceStub(channel).Attach(metadata=token_metadata(token))
        router = Router(call)
        try:
            yield router
        finally:
            await router.detach()


async def describe(port: int, token: str | None = TOKEN) -> wire.DescribeResponse:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        return await wire_grpc.WorkerServiceStub(channel).Describe(
            wire.DescribeRequest(), metadata=token_metadata(token), timeout=5
        )


async def asset(port: int, kind: "wire.AssetKind.ValueType") -> bytes:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call = wire_grpc.WorkerServiceStub(channel).Assets(
            wire.AssetsRequest(kind=kind), metadata=token_metadata(TOKEN), timeout=5
        )
        return b"".join([part.chunk async for part in call])
