"""Between router wire messages and the engine's values; bad input is refused here, by name."""

from collections.abc import Iterable

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    RequestKey,
    RequestSpec,
    SpeculationLimits,
    SpeculationTotals,
    TokenLogprobs,
    TokenNews,
)
from outrider_worker.rpc.options import (
    check_ids,
    grammar_of,
    invalid,
    sampling_params,
    unsupported,
)
from outrider_worker.speculate.drafter import PREDICTED

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
MAX_SALT_BYTES = 64
MAX_REQUEST_ID_CHARACTERS = 256
MAX_CLASS_LABEL_CHARACTERS = 64
MAX_PREDICTION_TOKENS = 128 * 1024


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
    _check_submit(message, vocab_size)
    return RequestSpec(
        key=request_key(owner, message),
        prompt_ids=tuple(message.prompt_ids),
        resumed_ids=tuple(message.resumed_ids),
        sampling=sampling_params(message, vocab_size),
        speculation=_speculation(message.speculation),
        grammar=grammar_of(message),
        class_label=message.class_label,
        tenant_salt=message.tenant_salt,
        deadline_s=now_s + message.deadline_ms / 1e3 if message.deadline_ms else None,
        prediction_ids=tuple(message.prediction_ids),
        priority=message.priority,
    )


def _refuse_unsupported(message: wire.Submit, drafters: Iterable[str]) -> None:
    """What this worker cannot honour is refused by name, never dropped silently."""
    if message.adapter:
        raise unsupported("adapter")
    drafter, loaded = message.speculation.drafter, tuple(drafters)
    if drafter and drafter not in loaded:
        known = f"those loaded are {', '.join(loaded)}" if loaded else "none is loaded"
        raise invalid("speculation.drafter", f"drafter {drafter!r} is not loaded: {known}")
    if drafter == PREDICTED and not message.prediction_ids:
        text = f"drafter {PREDICTED!r} drafts the prediction of a request, and this one has none"
        raise invalid("prediction", text)


def _check_submit(message: wire.Submit, vocab_size: int) -> None:
    if not message.request_id:
        raise invalid("request_id", "request_id must not be empty")
    _check_length("request_id", message.request_id, MAX_REQUEST_ID_CHARACTERS)
    _check_length("class_label", message.class_label, MAX_CLASS_LABEL_CHARACTERS)
    if not message.prompt_ids:
        raise invalid("prompt_ids", "the prompt is empty")
    if len(message.tenant_salt) > MAX_SALT_BYTES:
        raise invalid("tenant_salt", f"tenant_salt must have at most {MAX_SALT_BYTES} bytes")
    if len(message.prediction_ids) > MAX_PREDICTION_TOKENS:
        text = f"prediction_ids must have at most {MAX_PREDICTION_TOKENS} ids"
        raise invalid("prediction_ids", text)
    for name in ("prompt_ids", "resumed_ids", "prediction_ids"):
        check_ids(name, getattr(message, name), vocab_size)


def _check_length(name: str, text: str, most_characters: int) -> None:
    if len(text) > most_characters:
        raise invalid(name, f"{name} must have at most {most_characters} characters")


def _speculation(options: wire.SpeculationOptions) -> SpeculationLimits:
    return SpeculationLimits(
        enabled=options.enabled if options.HasField("enabled") else None,
        max_draft_tokens=options.max_draft_tokens if options.HasField("max_draft_tokens") else None,
        drafter=options.drafter,
    )


def news_to_wire(news: TokenNews, drafter_index: int) -> wire.RequestTokens:
    """One request's share of a round."""
    message = wire.RequestTokens(
        request_id=news.key.request_id,
        choice_index=news.key.choice_index,
        token_ids=news.token_ids,
        accepted_tokens=news.accepted_tokens,
        drafter_index=drafter_index,
        logprobs=[_logprobs(entry) for entry in news.logprobs],
        cached_prompt_tokens=news.cached_prompt_tokens,
        verified_tokens=news.verified_tokens,
        relaxed_tokens=news.relaxed_tokens,
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


def _logprobs(entry: TokenLogprobs) -> wire.TokenLogprobs:
    return wire.TokenLogprobs(
        logprob=entry.logprob, top_ids=entry.top_ids, top_logprobs=entry.top_logprobs
    )


def _totals(totals: SpeculationTotals) -> wire.SpeculationTotals:
    return wire.SpeculationTotals(
        verify_steps=totals.verify_steps,
        drafted_tokens=totals.drafted_tokens,
        verified_tokens=totals.verified_tokens,
        accepted_tokens=totals.accepted_tokens,
        acceptance_histogram=totals.acceptance_histogram,
        accepted_prediction_tokens=totals.accepted_prediction_tokens,
        rejected_prediction_tokens=totals.rejected_prediction_tokens,
    )
