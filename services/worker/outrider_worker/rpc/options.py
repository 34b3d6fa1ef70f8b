"""What a request may ask of sampling: the wire's options, with bounds, each refused by its name.

Bounds keep one request from costing others time or memory, and keep the arithmetic finite. A wire
field that is not set means that the option is off.
"""

from collections.abc import Iterable

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Grammar,
    GrammarKind,
    RequestRefused,
    SamplingParams,
)

OPTIONS = (
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "bad_words",
    "logprobs",
    "tenant_salt",
    "prediction_ids",
)
"""Fields beyond the basic ones that work with every model."""
GRAMMAR_OPTION = "grammar"
"""Works where the model's vocabulary can be read."""

MAX_TEMPERATURE = 100.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
MAX_PENALTY = 2.0
MAX_BIASES, MAX_BIAS = 1024, 100.0
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 128, 32
MAX_STOP_TOKEN_IDS = 1024
MAX_TOP_LOGPROBS = 20

_GRAMMARS = {
    wire.GRAMMAR_KIND_JSON_SCHEMA: GrammarKind.JSON_SCHEMA,
    wire.GRAMMAR_KIND_REGEX: GrammarKind.REGEX,
    wire.GRAMMAR_KIND_LARK: GrammarKind.LARK,
}


def sampling_params(message: wire.Submit, vocab_size: int) -> SamplingParams:
    """How the request's tokens are chosen.

    Raises:
        RequestRefused: INVALID, naming the field.
    """
    options = message.sampling
    _check_counts(message)
    check_ids("stop_token_ids", options.stop_token_ids, vocab_size)
    return SamplingParams(
        temperature=_within("temperature", options.temperature, 0, MAX_TEMPERATURE),
        top_p=_top_p(options.top_p or 1.0),
        top_k=options.top_k,
        min_p=_within("min_p", options.min_p, 0, 1),
        repetition_penalty=_within(
            "repetition_penalty",
            options.repetition_penalty or 1.0,
            MIN_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
        ),
        presence_penalty=_penalty("presence_penalty", options.presence_penalty),
        frequency_penalty=_penalty("frequency_penalty", options.frequency_penalty),
        logit_bias=_logit_bias(options, vocab_size),
        bad_words=_bad_words(options, vocab_size),
        seed=message.seed,
        min_tokens=options.min_tokens,
        max_tokens=options.max_tokens,
        stop_token_ids=frozenset(options.stop_token_ids),
        ignore_eos=options.ignore_eos,
        top_logprobs=_top_logprobs(message),
        relaxed=message.speculation.relaxed,
    )


def grammar_of(message: wire.Submit) -> Grammar | None:
    """What the answer must look like; its length is the compiler's business.

    Raises:
        RequestRefused: INVALID, naming `grammar`.
    """
    if not message.HasField("grammar"):
        return None
    kind, text = _GRAMMARS.get(message.grammar.kind), message.grammar.text
    if kind is None:
        raise invalid("grammar", "the grammar's kind is unknown")
    if not text:
        raise invalid("grammar", "the grammar is empty")
    return Grammar(kind, text)


def invalid(param: str, message: str) -> RequestRefused:
    """The refusal of a wrong value."""
    return RequestRefused(Failure(FailureCode.INVALID, message, param))


def unsupported(param: str) -> RequestRefused:
    """The refusal of what this worker cannot honour."""
    return RequestRefused(Failure(FailureCode.UNSUPPORTED, f"{param} is not supported", param))


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Refuse ids that lie outside of the model's tables."""
    if max(ids, default=0) >= vocab_size:
        raise invalid(name, f"{name} holds an id beyond the vocabulary of {vocab_size}")


def _check_counts(message: wire.Submit) -> None:
    """Numbers of tokens that contradict each other."""
    options, resumed = message.sampling, len(message.resumed_ids)
    if options.max_tokens <= resumed:
        raise invalid("max_tokens", "max_tokens must be above the number of resumed ids")
    if options.min_tokens > options.max_tokens:
        raise invalid("min_tokens", "min_tokens must not be above max_tokens")
    if len(options.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids")


def _within(name: str, value: float, low: float, high: float) -> float:
    """The value; NaN lies within nothing."""
    if not low <= value <= high:
        raise invalid(name, f"{name} must be within {low:g}…{high:g}")
    return value


def _penalty(name: str, value: float) -> float:
    return _within(name, value, -MAX_PENALTY, MAX_PENALTY)


def _top_p(value: float) -> float:
    if not 0 < value <= 1:
        raise invalid("top_p", "top_p must be above 0 and at most 1")
    return value


def _logit_bias(options: wire.SamplingOptions, vocab_size: int) -> tuple[tuple[int, float], ...]:
    name = "logit_bias"
    if len(options.logit_bias) > MAX_BIASES:
        raise invalid(name, f"{name} may name at most {MAX_BIASES} tokens")
    check_ids(name, (entry.token_id for entry in options.logit_bias), vocab_size)
    return tuple(
        (entry.token_id, _within(name, entry.bias, -MAX_BIAS, MAX_BIAS))
        for entry in options.logit_bias
    )


def _bad_words(options: wire.SamplingOptions, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    name = "bad_words"
    if len(options.bad_words) > MAX_BAD_WORDS:
        raise invalid(name, f"at most {MAX_BAD_WORDS} {name}")
    words = tuple(tuple(word.token_ids) for word in options.bad_words)
    if any(not 0 < len(word) <= MAX_BAD_WORD_TOKENS for word in words):
        raise invalid(name, f"each of the {name} must have 1…{MAX_BAD_WORD_TOKENS} tokens")
    for word in words:
        check_ids(name, word, vocab_size)
    return words


def _top_logprobs(message: wire.Submit) -> int | None:
    if not message.HasField("logprobs"):
        return None
    top = message.logprobs.top_logprobs
    if top > MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"top_logprobs must be at most {MAX_TOP_LOGPROBS}")
    return top
