"""Between the router's values and the worker contract's messages, and the three calls.

Knows field names and enumerations; knows nothing of connections, requests in flight or text.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.common.v1 import common_pb2
from outrider.worker.v1 import worker_pb2, worker_pb2_grpc
from outrider_router.text.model_text import TextAssets
from outrider_router.types import (
    Failure,
    FailureCode,
    Finish,
    FinishKind,
    Grammar,
    GrammarKind,
    Round,
    Submission,
    TokenLogprobs,
    Totals,
    Update,
    WorkerStatus,
)
from outrider_runtime.rpc import token_metadata

_DESCRIBE_DEADLINE_S = 2.0
_ASSETS_DEADLINE_S = 30.0
_SERVICE = "outrider.worker.v1.WorkerService"

Outgoing = worker_pb2.AttachRequest
Key = tuple[str, int]

_FAILURES = {
    worker_pb2.FAILURE_CODE_INVALID: FailureCode.INVALID,
    worker_pb2.FAILURE_CODE_UNSUPPORTED: FailureCode.UNSUPPORTED,
    worker_pb2.FAILURE_CODE_TOO_LONG: FailureCode.TOO_LONG,
    worker_pb2.FAILURE_CODE_OVERLOADED: FailureCode.OVERLOADED,
    worker_pb2.FAILURE_CODE_UNAVAILABLE: FailureCode.UNAVAILABLE,
    worker_pb2.FAILURE_CODE_DEADLINE: FailureCode.DEADLINE,
}
_FINISHES = {
    worker_pb2.FINISH_REASON_STOP_TOKEN: FinishKind.STOP_TOKEN,
    worker_pb2.FINISH_REASON_LENGTH: FinishKind.LENGTH,
    worker_pb2.FINISH_REASON_CANCELLED: FinishKind.CANCELLED,
}
_GRAMMARS = {
    GrammarKind.JSON_SCHEMA: worker_pb2.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: worker_pb2.GRAMMAR_KIND_REGEX,
    GrammarKind.LARK: worker_pb2.GRAMMAR_KIND_LARK,
}


@dataclass(frozen=True)
class WorkerWire:
    """The calls of one connected worker. All raise `grpc.aio.AioRpcError`."""

    channel: grpc.aio.Channel
    token: str | None

    async def describe(self) -> WorkerStatus:
        """What the worker is and whether it is ready."""
        response = await worker_pb2_grpc.WorkerServiceStub(self.channel).Describe(
            worker_pb2.DescribeRequest(),
            timeout=_DESCRIBE_DEADLINE_S,
            metadata=token_metadata(self.token),
        )
        return _status(response)

    async def text_assets(self, chat_template: str) -> TextAssets:
        """The model's text files; `chat_template` is what the description had of it."""
        template = chat_template.encode() or await self._asset(worker_pb2.ASSET_KIND_CHAT_TEMPLATE)
        return TextAssets(
            tokenizer=await self._asset(worker_pb2.ASSET_KIND_TOKENIZER),
            tokenizer_config=await self._asset(worker_pb2.ASSET_KIND_TOKENIZER_CONFIG),
            chat_template=template.decode(),
        )

    async def _asset(self, kind: worker_pb2.AssetKind.ValueType) -> bytes:
        """One file's bytes; empty where the model has none."""
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        stream = stub.Assets(
            worker_pb2.AssetsRequest(kind=kind),
            timeout=_ASSETS_DEADLINE_S,
            metadata=token_metadata(self.token),
        )
        try:
            return b"".join([response.chunk async for response in stream])
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return b""
            raise

    async def health(self) -> AsyncIterator[bool]:
        """Whether the worker's standard health service says that it serves, at each change."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest(service=_SERVICE)
        async for response in stub.Watch(request, metadata=token_metadata(self.token)):
            yield response.status == health_pb2.HealthCheckResponse.SERVING

    def attach(
        self, outgoing: AsyncIterator[Outgoing]
    ) -> grpc.aio.StreamStreamCall[Outgoing, worker_pb2.AttachResponse]:
        """Open the stream; a message is asked for when the one before it is on its way."""
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        return stub.Attach(outgoing, metadata=token_metadata(self.token))


def submit_message(submission: Submission) -> Outgoing:
    """The message that starts one choice."""
    wishes = submission.speculation
    return Outgoing(
        submit=worker_pb2.Submit(
            request_id=submission.request_id,
            choice_index=submission.choice_index,
            prompt_ids=submission.prompt_ids,
            seed=submission.seed,
            sampling=_sampling_message(submission),
            deadline_ms=submission.deadline_ms,
            prediction_ids=submission.prediction_ids,
            grammar=_grammar_message(submission.grammar),
            logprobs=_logprobs_message(submission.top_logprobs),
            tenant_salt=submission.tenant_salt,
            priority=submission.priority,
            class_label=submission.class_label,
            resumed_ids=submission.resumed_ids,
            traceparent=submission.traceparent,
            speculation=worker_pb2.SpeculationOptions(
                enabled=wishes.enabled,
                max_draft_tokens=wishes.max_draft_tokens,
                drafter=wishes.drafter,
                relaxed=wishes.relaxed,
            ),
        )
    )


def _sampling_message(submission: Submission) -> worker_pb2.SamplingOptions:
    sampling = submission.sampling
    message = worker_pb2.SamplingOptions(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=[
            worker_pb2.LogitBias(token_id=token_id, bias=bias)
            for token_id, bias in sampling.logit_bias
        ],
        bad_words=[worker_pb2.TokenSequence(token_ids=ids) for ids in sampling.bad_words],
    )
    for name, value in sampling.options.items():
        setattr(message, name, value)
    return message


def _grammar_message(grammar: Grammar | None) -> worker_pb2.Grammar | None:
    if grammar is None:
        return None
    return worker_pb2.Grammar(kind=_GRAMMARS[grammar.kind], text=grammar.text)


def _logprobs_message(top: int | None) -> worker_pb2.LogprobsOptions | None:
    return None if top is None else worker_pb2.LogprobsOptions(top_logprobs=top)


def cancel_message(submission: Submission) -> Outgoing:
    """The message that drops one choice."""
    return Outgoing(
        cancel=worker_pb2.Cancel(
            request_id=submission.request_id, choice_index=submission.choice_index
        )
    )


def ping_message(sequence: int) -> Outgoing:
    """The router's sign of life."""
    return Outgoing(ping=common_pb2.Heartbeat(sequence=sequence))


def incarnation_of(response: worker_pb2.AttachResponse) -> str:
    """Which life of the worker a message's tokens come from; empty where it has none."""
    return response.tokens.worker_incarnation


def news_of(
    response: worker_pb2.AttachResponse, drafters: Sequence[str] = ()
) -> Iterator[tuple[Key, Update]]:
    """What one message says about each choice in it; nothing for a sign of life.

    `drafters`: the worker's, in the order of its description.
    """
    for news in response.tokens.requests:
        yield (news.request_id, news.choice_index), _update(news, drafters)


def _update(news: worker_pb2.RequestTokens, drafters: Sequence[str]) -> Update:
    token_ids = tuple(news.token_ids)
    return Update(
        token_ids,
        news.cached_prompt_tokens,
        _end(news),
        _totals(news.totals) if news.HasField("totals") else None,
        tuple(map(_logprobs, news.logprobs)),
        _rounds(news, len(token_ids), drafters),
    )


def _logprobs(entry: worker_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(entry.logprob, tuple(zip(entry.top_ids, entry.top_logprobs, strict=True)))


def _rounds(
    news: worker_pb2.RequestTokens, tokens: int, drafters: Sequence[str]
) -> tuple[Round, ...]:
    verified, accepted = news.verified_tokens, news.accepted_tokens
    if not (verified or accepted):
        return _undrafted(tokens)
    known = accepted and news.drafter_index < len(drafters)
    drafter = drafters[news.drafter_index] if known else ""
    return (Round(tokens, verified, accepted, news.relaxed_tokens, drafter),)


@lru_cache
def _undrafted(tokens: int) -> tuple[Round, ...]:
    """A round without drafts; nearly all are alike."""
    return (Round(tokens),) if tokens else ()


def _totals(message: worker_pb2.SpeculationTotals) -> Totals:
    return Totals(
        verify_steps=message.verify_steps,
        drafted_tokens=message.drafted_tokens,
        verified_tokens=message.verified_tokens,
        accepted_tokens=message.accepted_tokens,
        accepted_prediction_tokens=message.accepted_prediction_tokens,
        rejected_prediction_tokens=message.rejected_prediction_tokens,
    )


def _end(news: worker_pb2.RequestTokens) -> Finish | Failure | None:
    match news.WhichOneof("end"):
        case "finish":
            finish = news.finish
            if finish.reason not in _FINISHES:
                return Failure(FailureCode.INTERNAL, "the worker gave no reason for the end")
            stop = finish.stop_token_id if finish.HasField("stop_token_id") else None
            return Finish(_FINISHES[finish.reason], stop)
        case "failure":
            failure = news.failure
            code = _FAILURES.get(failure.code, FailureCode.INTERNAL)
            return Failure(code, failure.message, failure.param or None)
        case _:
            return None


def _status(response: worker_pb2.DescribeResponse) -> WorkerStatus:
    identity, load = response.identity, response.load
    return WorkerStatus(
        model=response.model,
        model_digest=identity.model_digest,
        engine_version=identity.engine_version,
        drafters=tuple(drafter.name for drafter in response.drafters),
        vocab_size=response.vocab_size,
        context_tokens=response.limits.max_context_tokens,
        max_draft_tokens=response.limits.max_draft_tokens,
        options=frozenset(response.supported_options),
        incarnation=response.worker_incarnation,
        ready=response.ready,
        not_ready_reason=response.not_ready_reason,
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        chat_template=response.chat_template,
        max_running_requests=response.limits.max_running_requests,
        kv_used_tokens=load.kv_used_tokens,
        kv_capacity_tokens=load.kv_capacity_tokens,
    )
