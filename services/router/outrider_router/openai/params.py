"""Which request fields have an effect, which are ignored, and which are refused: one table each.

A field we do not know is accepted and counted, as other servers do. A field we know and cannot
honour is refused by name, unless its value asks for nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider_router.openai import prediction
from outrider_router.openai.errors import invalid, unsupported
from outrider_router.openai.schema import ChatBody, GenerationBody
from outrider_router.types import Sampling, Speculation

OTHER_FIELD = "other"
_NOT_OFFERED = "is not supported by this model's workers"
_MAX_SEED = 2**64 - 1
# Keeps exactly the most likely token, which is what top_p 0 asks for; the wire reads 0 as unset.
_LEAST_TOP_P = 1e-6

# Accepted without effect and counted; they steer the provider's business, not the text.
IGNORED = frozenset(
    {
        *("service_tier", "metadata", "safety_identifier", "prompt_cache_key", "user"),
        *("prompt_cache_retention", "prompt_cache_options", "verbosity", "moderation"),
        *("session_id", "request_id", "rid", "separate_reasoning", "include_reasoning"),
    }
)


def _is(*neutral: Any) -> Callable[[Any], bool]:
    """True for values that ask for nothing; null always does."""
    return lambda value: any(value == item and type(value) is type(item) for item in neutral)


def _empty(value: Any) -> bool:
    return value in ({}, [], "")


def _plain_text_format(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "text"


# Refused unless the test says that the value asks for nothing.
REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "audio": _is(),
    "modalities": _is(["text"]),
    "web_search_options": _is(),
    "functions": _empty,
    "function_call": _is("none"),
    "store": _is(False),
    "tools": _empty,
    "tool_choice": _is("none", "auto"),
    "parallel_tool_calls": _is(True, False),
    "response_format": _plain_text_format,
    "structured_outputs": _empty,
    "guided_json": _is(),
    "guided_regex": _is(),
    "guided_choice": _is(),
    "guided_grammar": _is(),
    "guided_decoding": _empty,
    "guided_decoding_backend": _is(),
    "structural_tag": _is(),
    "grammar": _is(),
    "regex": _is(),
    "ebnf": _is(),
    "json_schema": _is(),
    "reasoning_effort": _is("none"),
    "chat_template": _is(),
    "chat_template_kwargs": _empty,
    "documents": _empty,
    "add_generation_prompt": _is(True),
    "continue_final_message": _is(False),
    "add_special_tokens": _is(),
    "logprobs": _is(False),
    "top_logprobs": _is(0),
    "prompt_logprobs": _is(),
    "return_tokens_as_token_ids": _is(False),
    "best_of": _is(1),
    "echo": _is(False),
    "suffix": _empty,
    "bad_words": _empty,
    "allowed_token_ids": _empty,
    "priority": _is(0),
    "cache_salt": _is(),
    "truncate_prompt_tokens": _is(),
    "include_stop_str_in_output": _is(False),
    "no_stop_trim": _is(False),
    "skip_special_tokens": _is(True),
    "spaces_between_special_tokens": _is(True, False),
    "use_beam_search": _is(False),
    "stream_interval": _is(1),
    "logits_processors": _empty,
}

# Sent on only where the worker lists them; the value is the one that asks for nothing.
WORKER_OPTIONS: Mapping[str, float] = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}


@dataclass(frozen=True)
class Wishes:
    """A request's parameters, checked; `max_tokens` None means: as many as fit."""

    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    choices: int
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    options: Mapping[str, float]
    logit_bias: tuple[tuple[int, float], ...]
    speculation: Speculation
    prediction: str

    def sampling(self, room_tokens: int) -> Sampling:
        """How to sample with so much room left; a larger `max_tokens` is cut to it."""
        max_tokens = min(self.max_tokens or room_tokens, room_tokens)
        options = dict(self.options)
        if "min_tokens" in options:
            options["min_tokens"] = min(options["min_tokens"], room_tokens)
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=max_tokens,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            options=options,
            logit_bias=self.logit_bias,
        )


def ignored_fields(body: GenerationBody) -> list[str]:
    """Names of the fields that have no effect, for counting.

    Raises:
        ApiError: 400 `unsupported_parameter` for a field we know and cannot honour.
    """
    ignored = []
    for name, value in (body.model_extra or {}).items():
        if value is None:
            continue
        asks_for_nothing = REFUSED.get(name)
        if asks_for_nothing is None:
            ignored.append(name if name in IGNORED else OTHER_FIELD)
        elif not asks_for_nothing(value) and not (name == "best_of" and value == body.n):
            raise unsupported(name)
    options = body.stream_options
    if options is not None and options.model_extra:
        ignored += [OTHER_FIELD] * len(options.model_extra)
    return ignored


def wishes_of(body: GenerationBody, worker_options: frozenset[str], vocab_size: int) -> Wishes:
    """The parameters of a request.

    Args:
        body: the request.
        worker_options: options that the model's workers support beyond the basic ones.
        vocab_size: token ids lie below.

    Raises:
        ApiError: 400, naming the field.
    """
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true", "stream_options")
    bias = tuple((int(token_id), value) for token_id, value in (body.logit_bias or {}).items())
    if bias and "logit_bias" not in worker_options:
        raise unsupported("logit_bias")
    if any(token_id >= vocab_size for token_id, _ in bias):
        raise invalid("logit_bias names a token outside the vocabulary", "logit_bias")
    top_p = 1.0 if body.top_p is None else body.top_p
    return Wishes(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=max(top_p, _LEAST_TOP_P),
        top_k=max(body.top_k or 0, 0),
        seed=None if body.seed is None else body.seed & _MAX_SEED,
        choices=body.n or 1,
        max_tokens=_max_tokens(body),
        stops=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        options=_worker_options(body, worker_options),
        logit_bias=bias,
        speculation=_speculation(body),
        prediction=_prediction(body, worker_options),
    )


def _max_tokens(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens


def _speculation(body: GenerationBody) -> Speculation:
    wanted = body.speculation
    if wanted is None:
        return Speculation()
    return Speculation(wanted.enabled, wanted.max_draft, wanted.drafter or "")


def _prediction(body: GenerationBody, offered: frozenset[str]) -> str:
    """The predicted text."""
    text = prediction.prediction_text(body.prediction)
    if text and prediction.OPTION not in offered:
        raise unsupported(prediction.PARAM, _NOT_OFFERED)
    return text


def _worker_options(body: GenerationBody, offered: frozenset[str]) -> dict[str, float]:
    wanted = {}
    for name, neutral in WORKER_OPTIONS.items():
        value = getattr(body, name)
        if value is None or value == neutral:
            continue
        if name not in offered:
            raise unsupported(name, _NOT_OFFERED)
        wanted[name] = value
    return wanted
