"""A worker without a model: a real gRPC server on loopback that plays scripts of token ids.

It keeps the contract of a worker (heartbeats, descriptions, assets, one finish per choice) and can
be told to break it: stall, refuse, freeze, die. It records what it was sent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from outrider.common.v1 import common_pb2
from outrider.worker.v1 import worker_pb2, worker_pb2_grpc
from outrider_runtime.lifecycle import new_incarnation
from outrider_runtime.rpc import RpcServer, start_server
from outrider_runtime.tls import TlsFiles
from tests.support import tiny_tokenizers as tiny

Key = tuple[str, int]
MAX_DRAFT_TOKENS = 8
ALL_OPTIONS = (
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("min_tokens", "bad_words", "logprobs", "tenant_salt", "prediction_ids", "grammar"),
)
"""What a worker may offer beyond the basic options."""


@dataclass(frozen=True)
class Script:
    """What to answer one choice.

    Attributes:
        rounds: token ids of each round.
        gap_s: wait before each round.
        stall_after: say nothing more after so many rounds until the worker's `resume` is set.
        die_after: the whole worker dies after so many rounds.
        failure: end with this code after the rounds.
        stop_token_id: end with this stop token after the rounds; by default with the length limit
            if that was reached, else with the end-of-sequence token.
        predicted: prediction tokens (accepted, rejected) so far, to be told with each round.
        verified: drafts that each round verified.
        drafter: index of the drafter; all but the last token of a round are its drafts.
    """

    rounds: Sequence[Sequence[int]]
    gap_s: float = 0.0
    stall_after: int | None = None
    die_after: int | None = None
    failure: "worker_pb2.FailureCode.ValueType | None" = None
    failure_param: str = ""
    failure_message: str = "as scripted"
    stop_token_id: int = 2
    predicted: Sequence[tuple[int, int]] = ()
    verified: Sequence[int] = ()
    drafter: int = 0


Scripter = Callable[[worker_pb2.Submit], Script]


@dataclass
class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """One fake worker; use as an asynchronous context manager.

    Attributes:
        script: what to answer; a function of the submission.
        frozen: neither beats nor describes, as a stopped process.
        resume: lets choices that stall go on.
        submitted: everything received, in order.
        cancelled: keys of the choices that a cancel found active, in order.
        active: choices being played.
        descriptions: how often it was asked what it is.
    """

    script: Scripter | Script = Script([])
    model: str = "tiny"
    digest: str = "0" * 16
    context_tokens: int = 512
    options: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    token: str | None = None
    tls: TlsFiles | None = None
    ready: bool = True
    frozen: bool = False
    tokenizer: bytes = field(default_factory=tiny.byte_level_json)
    chat_template: str = tiny.CHATML
    port: int = 0
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[worker_pb2.Submit] = field(default_factory=list)
    cancelled: list[Key] = field(default_factory=list)
    active: dict[Key, "asyncio.Task[None]"] = field(default_factory=dict)
    running_requests: int = 0
    descriptions: int = 0
    _server: RpcServer | None = None
    _round: int = 0

    async def __aenter__(self) -> "FakeWorker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    @property
    def address(self) -> str:
        """`host:port`, the same after a restart."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Serve, on the same port as before."""
        self.incarnation = new_incarnation()
        self._server = await start_server(
            "127.0.0.1",
            self.port,
            self.token,
            lambda server: worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, server),
            ["outrider.worker.v1.WorkerService"],
            self.tls,
        )
        self.port = self._server.port
        await self._server.set_serving(True)

    async def die(self) -> None:
        """Cut everything at once."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)

    def forget(self) -> None:
        """Be as new for the next test, on the same connection."""
        self.script = Script([])
        self.resume.clear()
        self.submitted.clear()
        self.cancelled.clear()

    def texts(self) -> list[str]:
        """The prompts received, decoded."""
        return [tiny.decode(submit.prompt_ids) for submit in self.submitted]

    async def Attach(
        self, request_iterator: AsyncIterator[worker_pb2.AttachRequest], context: Any
    ) -> AsyncIterator[worker_pb2.AttachResponse]:
        """One router's stream."""
        outbox: asyncio.Queue[worker_pb2.AttachResponse] = asyncio.Queue()
        mine: set[Key] = set()
        reader = asyncio.create_task(self._read(request_iterator, outbox, mine))
        try:
            while True:
                response = await outbox.get()
                if not self.frozen:
                    yield response
        finally:
            reader.cancel()
            for key in mine:
                self._drop(key)

    async def _read(
        self,
        requests: AsyncIterator[worker_pb2.AttachRequest],
        outbox: asyncio.Queue[worker_pb2.AttachResponse],
        mine: set[Key],
    ) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "ping":
                    beat = common_pb2.Heartbeat(sequence=request.ping.sequence)
                    outbox.put_nowait(worker_pb2.AttachResponse(pong=beat))
                case "submit":
                    submit = request.submit
                    key = (submit.request_id, submit.choice_index)
                    assert key not in self.active, "a key may be active only once"
                    self.submitted.append(submit)
                    mine.add(key)
                    self.active[key] = asyncio.create_task(self._play(submit, outbox))
                case "cancel":
                    key = (request.cancel.request_id, request.cancel.choice_index)
                    if self._drop(key):
                        self.cancelled.append(key)
                        outbox.put_nowait(self._news(key, finish=_finish("CANCELLED")))

    def _drop(self, key: Key) -> bool:
        task = self.active.pop(key, None)
        if task is None:
            return False
        task.cancel()
        return True

    async def _play(
        self, submit: worker_pb2.Submit, outbox: asyncio.Queue[worker_pb2.AttachResponse]
    ) -> None:
        script = self.script if isinstance(self.script, Script) else self.script(submit)
        key = (submit.request_id, submit.choice_index)
        left = submit.sampling.max_tokens - len(submit.resumed_ids)
        for number, round_ids in enumerate(script.rounds):
            if number == script.die_after:
                self.active.pop(key)
                await self.die()
                return
            if number == script.stall_after:
                await self.resume.wait()
            await asyncio.sleep(script.gap_s)
            ids = list(round_ids[:left])
            left -= len(ids)
            news: dict[str, Any] = {"token_ids": ids, "accepted_tokens": max(0, len(ids) - 1)}
            news["drafter_index"] = script.drafter
            news |= _totals(script, number) | _verified(script, number)
            if submit.HasField("logprobs"):
                news["logprobs"] = [_logprobs(submit, token_id) for token_id in ids]
            outbox.put_nowait(self._news(key, **news))
            if not left:
                break
        outbox.put_nowait(self._news(key, **_end(script, left)))
        self.active.pop(key, None)

    def _news(self, key: Key, **news: Any) -> worker_pb2.AttachResponse:
        self._round += 1
        request = worker_pb2.RequestTokens(request_id=key[0], choice_index=key[1], **news)
        return worker_pb2.AttachResponse(
            tokens=worker_pb2.Tokens(
                worker_incarnation=self.incarnation, round=self._round, requests=[request]
            )
        )

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.DescribeResponse:
        """The description as the attributes have it now."""
        self.descriptions += 1
        while self.frozen:
            await asyncio.sleep(0.02)
        return worker_pb2.DescribeResponse(
            model=self.model,
            vocab_size=tiny.vocab_size(self.tokenizer),
            limits=common_pb2.EngineLimits(
                max_context_tokens=self.context_tokens, max_draft_tokens=MAX_DRAFT_TOKENS
            ),
            eos_token_ids=[2],
            supported_options=self.options,
            drafters=[common_pb2.DrafterTraits(name=name) for name in self.drafters],
            worker_incarnation=self.incarnation,
            ready=self.ready,
            not_ready_reason="" if self.ready else "warming up",
            identity=common_pb2.EngineIdentity(model=self.model, model_digest=self.digest),
            load=worker_pb2.WorkerLoad(running_requests=self.running_requests),
        )

    async def Assets(
        self, request: worker_pb2.AssetsRequest, context: Any
    ) -> AsyncIterator[worker_pb2.AssetsResponse]:
        """The model's files, in chunks."""
        files = {
            worker_pb2.ASSET_KIND_TOKENIZER: self.tokenizer,
            worker_pb2.ASSET_KIND_TOKENIZER_CONFIG: tiny.tokenizer_config_json(),
            worker_pb2.ASSET_KIND_CHAT_TEMPLATE: self.chat_template.encode(),
        }
        content = files.get(request.kind, b"")
        if not content:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the model has no such file")
        for at in range(0, len(content), 4096):
            yield worker_pb2.AssetsResponse(chunk=content[at : at + 4096])


def _totals(script: Script, round_: int) -> dict[str, worker_pb2.SpeculationTotals]:
    if round_ >= len(script.predicted):
        return {}
    accepted, rejected = script.predicted[round_]
    totals = worker_pb2.SpeculationTotals(
        accepted_prediction_tokens=accepted, rejected_prediction_tokens=rejected
    )
    return {"totals": totals}


def _verified(script: Script, round_: int) -> dict[str, int]:
    return {"verified_tokens": script.verified[round_]} if round_ < len(script.verified) else {}


def _logprobs(submit: worker_pb2.Submit, token_id: int) -> worker_pb2.TokenLogprobs:
    """The token itself is the likeliest, and the one before it the next."""
    top = min(submit.logprobs.top_logprobs, 2)
    return worker_pb2.TokenLogprobs(
        logprob=-0.25, top_ids=[token_id, token_id - 1][:top], top_logprobs=[-0.25, -2.0][:top]
    )


def _end(script: Script, left: int) -> dict[str, worker_pb2.Failure | worker_pb2.Finish]:
    if script.failure is not None:
        failure = worker_pb2.Failure(
            code=script.failure, message=script.failure_message, param=script.failure_param
        )
        return {"failure": failure}
    finish = _finish("STOP_TOKEN", script.stop_token_id) if left else _finish("LENGTH")
    return {"finish": finish}


def _finish(reason: str, stop_token_id: int | None = None) -> worker_pb2.Finish:
    value = worker_pb2.FinishReason.Value(f"FINISH_REASON_{reason}")
    return worker_pb2.Finish(reason=value, stop_token_id=stop_token_id)


def saying(text: str, *sizes: int, **options: Any) -> Script:
    """A script that says `text` in rounds of the given sizes, the last one repeated."""
    return replace(Script(_rounds(tiny.encode(text), sizes or (1,))), **options)


def resuming(text: str, *sizes: int, **options: Any) -> Scripter:
    """As `saying`, but going on behind what the submission says was delivered already."""
    whole = tiny.encode(text)

    def script(submit: worker_pb2.Submit) -> Script:
        done = len(submit.resumed_ids)
        assert list(submit.resumed_ids) == whole[:done], "resumed with other ids than delivered"
        return replace(Script(_rounds(whole[done:], sizes or (1,))), **options)

    return script


def _rounds(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    rounds: list[Sequence[int]] = []
    while ids:
        size = sizes[min(len(rounds), len(sizes) - 1)]
        rounds.append(ids[:size])
        ids = ids[size:]
    return rounds
