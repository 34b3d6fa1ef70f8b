"""Between router wire messages and the engine's values; bad input is refused here, by name."""

import math
from collections.abc import Iterable

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    RequestKey,
    RequestRefused,
    RequestSpec,
    SamplingParams,
    SpeculationLimits,
    SpeculationTotals,
    TokenNews,
)

_FINISHES = {
    FinishReason.STOP_TOKEN: wire.FINISH_REASON_STOP_TOKEN,
    FinishReason.LENGTH: wire.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: wire.FINISH_REASON_CANCELLED,
}
_FAILURES = {
    FailureCode.INVALID: wire.FAILURE_CODE_INVALID,
    FailureCode.UNSUPPORTED: wire.FAILURE_CODE_UNSUPPORTED,
    FailureCode.TOO_LONG: wire.FAILURE_CODE_TOO_LONG,
    FailureCode.OVERLOADED: wire.FAILURE_CODE_OVERLOADED,
    FailureCode.UNAVAILABLE: wire.FAILURE_CODE_UNAVAILABLE,
    FailureCode.INTERNAL: wire.FAILURE_CODE_INTERNAL,
    FailureCode.DEADLINE: wire.FAILURE_CODE_DEADLINE,
}
_HIGHEST_TEMPERATURE = 100.0


def request_key(owner: str, message: wire.Submit) -> RequestKey:
    return RequestKey(owner, message.request_id, message.choice_index)


def spec_from_wire(
    owner: str, message: wire.Submit, vocab_size: int, drafters: Iterable[str], now_s: float
) -> RequestSpec:
    """A request as the engine takes it.

    Raises:
        RequestRefused: INVALID or UNSUPPORTED, naming the field.
    """
    _refuse_unsupported(message, drafters)
    _check_ids(message, vocab_size)
    return RequestSpec(
        key=request_key(owner, message),
        prompt_ids=tuple(message.prompt_ids),
        resumed_ids=tuple(message.resumed_ids),
        sampling=_sampling(message),
        speculation=_speculation(message.speculation),
        class_label=message.class_label,
        deadline_s=now_s + message.deadline_ms / 1e3 if message.deadline_ms else None,
    )


def _refuse_unsupported(message: wire.Submit, drafters: Iterable[str]) -> None:
    """What this worker cannot honour is refused by name, never dropped silently."""
    options = message.sampling
    asked = {
        "adapter": bool(message.adapter),
        "grammar": message.HasField("grammar"),
        "logprobs": message.HasField("logprobs"),
        "prediction_ids": bool(message.prediction_ids),
        "min_p": options.min_p != 0,
        "repetition_penalty": options.repetition_penalty not in (0, 1),
        "presence_penalty": options.presence_penalty != 0,
        "frequency_penalty": options.frequency_penalty != 0,
        "logit_bias": bool(options.logit_bias),
        "min_tokens": options.min_tokens != 0,
        "bad_words": bool(options.bad_words),
    }
    for name, present in asked.items():
        if present:
            raise _refusal(FailureCode.UNSUPPORTED, f"{name} is not supported", name)
    drafter = message.speculation.drafter
    if drafter and drafter not in set(drafters):
        raise _invalid("speculation.drafter", f"drafter {drafter!r} is not loaded")


def _check_ids(message: wire.Submit, vocab_size: int) -> None:
    if not message.request_id:
        raise _invalid("request_id", "request_id must not be empty")
    if not message.prompt_ids:
        raise _invalid("prompt_ids", "the prompt is empty")
    for name in ("prompt_ids", "resumed_ids"):
        if max(getattr(message, name), default=0) >= vocab_size:
            raise _invalid(name, f"{name} holds an id beyond the vocabulary of {vocab_size}")


def _sampling(message: wire.Submit) -> SamplingParams:
    options = message.sampling
    temperature, top_p = options.temperature, options.top_p or 1.0
    if not 0 <= temperature <= _HIGHEST_TEMPERATURE:  # NaN fails every comparison
        raise _invalid("temperature", f"temperature must be within 0…{_HIGHEST_TEMPERATURE:g}")
    if math.isnan(top_p) or not 0 < top_p <= 1:
        raise _invalid("top_p", "top_p must be above 0 and at most 1")
    if options.max_tokens <= len(message.resumed_ids):
        raise _invalid("max_tokens", "max_tokens must be above the number of resumed ids")
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=options.top_k,
        seed=message.seed,
        max_tokens=options.max_tokens,
        stop_token_ids=frozenset(options.stop_token_ids),
        ignore_eos=options.ignore_eos,
    )


def _speculation(options: wire.SpeculationOptions) -> SpeculationLimits:
    return SpeculationLimits(
        enabled=options.enabled if options.HasField("enabled") else None,
        max_draft_tokens=options.max_draft_tokens if options.HasField("max_draft_tokens") else None,
    )


def news_to_wire(news: TokenNews, drafter_index: int) -> wire.RequestTokens:
    """One request's share of a round."""
    message = wire.RequestTokens(
        request_id=news.key.request_id,
        choice_index=news.key.choice_index,
        token_ids=news.token_ids,
        accepted_tokens=news.accepted_tokens,
        drafter_index=drafter_index,
    )
    match news.end:
        case Finish(reason, stop_token_id):
            message.finish.reason = _FINISHES[reason]
            if stop_token_id is not None:
                message.finish.stop_token_id = stop_token_id
        case Failure(code, text, param):
            message.failure.CopyFrom(wire.Failure(code=_FAILURES[code], message=text, param=param))
    if news.totals is not None:
        message.totals.CopyFrom(_totals(news.totals))
    return message


def _totals(totals: SpeculationTotals) -> wire.SpeculationTotals:
    return wire.SpeculationTotals(
        verify_steps=totals.verify_steps,
        drafted_tokens=totals.drafted_tokens,
        verified_tokens=totals.verified_tokens,
        accepted_tokens=totals.accepted_tokens,
        acceptance_histogram=totals.acceptance_histogram,
    )


def _invalid(param: str, message: str) -> RequestRefused:
    return _refusal(FailureCode.INVALID, message, param)


def _refusal(code: FailureCode, message: str, param: str) -> RequestRefused:
    return RequestRefused(Failure(code, message, param))
