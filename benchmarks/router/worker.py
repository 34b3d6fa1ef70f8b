"""A worker without a model, as a process of its own: it says its script over the real gRPC.

    python -m benchmarks.router.worker --folder MODEL --port PORT

As a real one it sends one message per round with news of all choices.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.router.script import MODEL, Part, Rounds, ServerOptions, tokens_of
from outrider.common.v1 import common_pb2 as common
from outrider.worker.v1 import worker_pb2 as wire
from outrider.worker.v1 import worker_pb2_grpc as wire_grpc
from outrider_runtime.lifecycle import new_incarnation, stop_event
from outrider_runtime.rpc import start_server

_FILES = {
    wire.ASSET_KIND_TOKENIZER: "tokenizer.json",
    wire.ASSET_KIND_TOKENIZER_CONFIG: "tokenizer_config.json",
    wire.ASSET_KIND_CHAT_TEMPLATE: "chat_template.jinja",
}
_CHUNK_BYTES = 1 << 20
_CONTEXT_TOKENS = 8192
_VOCAB_SIZE = 49152


@dataclass
class _Choice(Part):
    request_id: str = ""
    index: int = 0


class _Stream:
    """One router's Attach stream."""

    def __init__(self, context: Any, ids: list[int], incarnation: str) -> None:
        self._context = context
        self._ids = ids
        self._incarnation = incarnation
        self._rounds: dict[int, Rounds[_Choice]] = {}
        self._writing = asyncio.Lock()

    async def read(self, requests: AsyncIterator[wire.AttachRequest]) -> None:
        """Play what is submitted until the router goes."""
        try:
            async for request in requests:
                match request.WhichOneof("message"):
                    case "ping":
                        beat = common.Heartbeat(sequence=request.ping.sequence)
                        await self._write(wire.AttachResponse(pong=beat))
                    case "submit":
                        await self._submit(request.submit)
                    case "cancel":
                        self._cancel(request.cancel.request_id)
        finally:
            for rounds in self._rounds.values():
                rounds.close()

    async def _submit(self, submit: wire.Submit) -> None:
        choice = _Choice(submit.sampling.max_tokens, 0, submit.request_id, submit.choice_index)
        await self._play([choice])
        if choice.ended:
            return
        gap_ms = submit.seed
        if gap_ms not in self._rounds:
            self._rounds[gap_ms] = Rounds(gap_ms / 1000, self._play)
        self._rounds[gap_ms].add(choice)

    def _cancel(self, request_id: str) -> None:
        for rounds in self._rounds.values():
            rounds.drop(lambda choice: choice.request_id == request_id)

    async def _play(self, choices: list[_Choice]) -> None:
        news = [self._next(choice) for choice in choices]
        tokens = wire.Tokens(worker_incarnation=self._incarnation, requests=news)
        await self._write(wire.AttachResponse(tokens=tokens))

    def _next(self, choice: _Choice) -> wire.RequestTokens:
        token_id = self._ids[choice.at % len(self._ids)]
        choice.at += 1
        finish = wire.Finish(reason=wire.FINISH_REASON_LENGTH) if choice.ended else None
        return wire.RequestTokens(
            request_id=choice.request_id,
            choice_index=choice.index,
            token_ids=[token_id],
            finish=finish,
        )

    async def _write(self, message: wire.AttachResponse) -> None:
        async with self._writing:
            await self._context.write(message)


class ScriptedWorker(wire_grpc.WorkerServiceServicer):
    """Serves a model's text files and, for its answers, the script."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids, _ = tokens_of(folder)
        self._incarnation = new_incarnation()

    async def Attach(  # type: ignore[override]  # noqa: N802 - the wire's name; writes by itself
        self, request_iterator: AsyncIterator[wire.AttachRequest], context: Any
    ) -> None:
        """Play for one router."""
        await _Stream(context, self._ids, self._incarnation).read(request_iterator)

    async def Describe(  # noqa: N802
        self, request: wire.DescribeRequest, context: Any
    ) -> wire.DescribeResponse:
        """A worker that is always ready and never full."""
        return wire.DescribeResponse(
            model=MODEL,
            vocab_size=_VOCAB_SIZE,
            limits=common.EngineLimits(max_context_tokens=_CONTEXT_TOKENS),
            worker_incarnation=self._incarnation,
            ready=True,
            identity=common.EngineIdentity(model=MODEL, model_digest="0" * 16),
        )

    async def Assets(  # noqa: N802
        self, request: wire.AssetsRequest, context: Any
    ) -> AsyncIterator[wire.AssetsResponse]:
        """The model's files, in chunks."""
        file = self._folder / _FILES.get(request.kind, "")
        if not file.is_file():
            await context.abort(grpc.StatusCode.NOT_FOUND, "the model has no such file")
        content = file.read_bytes()
        for at in range(0, len(content), _CHUNK_BYTES):
            yield wire.AssetsResponse(chunk=content[at : at + _CHUNK_BYTES])


async def _serve(options: ServerOptions) -> None:
    worker = ScriptedWorker(options.folder)
    server = await start_server(
        "127.0.0.1",
        options.port,
        None,
        lambda server: wire_grpc.add_WorkerServiceServicer_to_server(worker, server),
        ["outrider.worker.v1.WorkerService"],
    )
    await server.set_serving(True)
    await stop_event().wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve(ServerOptions.parsed(__doc__)))
