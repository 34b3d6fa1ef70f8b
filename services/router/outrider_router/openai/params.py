"""A request's parameters, checked: how to sample, what the text is held to, how it is written.

Some options are sent on only where the model's workers list them; others are refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from outrider_router.openai import prediction
from outrider_router.openai.caps import DEFAULT_CAPS, Caps
from outrider_router.openai.errors import invalid, unsupported
from outrider_router.openai.schema import ChatBody, CompletionBody, GenerationBody
from outrider_router.openai.structure import Structure, structure_of
from outrider_router.openai.tools import ToolUse, tool_use_of
from outrider_router.text.model_text import ModelText
from outrider_router.types import Sampling, Speculation

_NOT_OFFERED = "is not supported by this model's workers"
_MAX_SEED = 2**64 - 1
# Keeps exactly the most likely token, which is what top_p 0 asks for; the wire reads 0 as unset.
_LEAST_TOP_P = 1e-6

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
    """A request's parameters; `max_tokens` None means: as many as fit.

    Attributes:
        top_logprobs: alternatives beside each token's logprob; None without logprobs.
        keep_prompt_tokens: tokens of the prompt's end to keep; -1 is as many as fit, None all.
        tenant_salt: separates prompts in the worker's cache.
    """

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
    bad_words: tuple[str, ...]
    speculation: Speculation
    prediction: str
    top_logprobs: int | None
    structure: Structure | None
    tools: ToolUse | None
    keep_prompt_tokens: int | None
    tenant_salt: bytes
    priority: int

    def sampling(self, room_tokens: int, bad_words: tuple[tuple[int, ...], ...] = ()) -> Sampling:
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
            bad_words=bad_words,
        )


@dataclass(frozen=True)
class Offer:
    """What a model's workers can do: options beyond the basic ones, and token ids below a size."""

    options: frozenset[str]
    vocab_size: int

    def require(self, option: str, param: str) -> None:
        """Refuse what the workers do not offer.

        Raises:
            ApiError: 400 `unsupported_parameter`.
        """
        if option not in self.options:
            raise unsupported(param, _NOT_OFFERED)


def wishes_of(
    body: GenerationBody, offer: Offer, text: ModelText, caps: Caps = DEFAULT_CAPS
) -> Wishes:
    """The parameters of a request.

    Args:
        body: the request.
        offer: what the model's workers can do.
        text: the model's text side.
        caps: how much it may hold.

    Raises:
        ApiError: 400, naming the field.
    """
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true", "stream_options")
    top_p = 1.0 if body.top_p is None else body.top_p
    tools = _tools(body, text)
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
        options=_worker_options(body, offer),
        logit_bias=_logit_bias(body, offer),
        bad_words=_bad_words(body, offer),
        speculation=_speculation(body),
        prediction=_prediction(body, offer),
        top_logprobs=_top_logprobs(body, offer),
        structure=_structure(body, tools, offer, caps),
        tools=tools,
        keep_prompt_tokens=_keep_prompt_tokens(body),
        tenant_salt=_tenant_salt(body, offer),
        priority=body.priority or 0,
    )


def _max_tokens(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens


def _keep_prompt_tokens(body: GenerationBody) -> int | None:
    if body.truncate_prompt_tokens == 0:
        param = "truncate_prompt_tokens"
        raise invalid(f"{param} must be at least 1, or -1 for as many as fit", param)
    return body.truncate_prompt_tokens


def _speculation(body: GenerationBody) -> Speculation:
    """A seed asks for a text that can be had again, which relaxed acceptance does not promise."""
    wanted, relaxed = body.speculation, body.seed is None
    if wanted is None:
        return Speculation(relaxed=relaxed)
    relaxed = relaxed and wanted.relaxed is not False
    return Speculation(wanted.enabled, wanted.max_draft, wanted.drafter or "", relaxed)


def _prediction(body: GenerationBody, offer: Offer) -> str:
    """The predicted text."""
    text = prediction.prediction_text(body.prediction)
    if text:
        offer.require(prediction.OPTION, prediction.PARAM)
    return text


def _worker_options(body: GenerationBody, offer: Offer) -> dict[str, float]:
    wanted = {}
    for name, neutral in WORKER_OPTIONS.items():
        value = getattr(body, name)
        if value is None or value == neutral:
            continue
        offer.require(name, name)
        wanted[name] = value
    return wanted


def _logit_bias(body: GenerationBody, offer: Offer) -> tuple[tuple[int, float], ...]:
    bias = tuple((int(token_id), value) for token_id, value in (body.logit_bias or {}).items())
    if bias:
        offer.require("logit_bias", "logit_bias")
    if any(token_id >= offer.vocab_size for token_id, _ in bias):
        raise invalid("logit_bias names a token outside the vocabulary", "logit_bias")
    return bias


def _bad_words(body: GenerationBody, offer: Offer) -> tuple[str, ...]:
    words = tuple(body.bad_words or ())
    if words:
        offer.require("bad_words", "bad_words")
    return words


def _top_logprobs(body: GenerationBody, offer: Offer) -> int | None:
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    top = body.wanted_logprobs
    if top is not None:
        offer.require("logprobs", "logprobs")
    return top


def _tools(body: GenerationBody, text: ModelText) -> ToolUse | None:
    """The tools to use; the model's template must teach calls in a format that is known here."""
    use = tool_use_of(body) if isinstance(body, ChatBody) else None
    if use is not None and text.tool_format is None:
        why = "is not supported: this model's chat template has no format of tool calls known here"
        raise unsupported("tools", why)
    return use


def _structure(
    body: GenerationBody, tools: ToolUse | None, offer: Offer, caps: Caps
) -> Structure | None:
    """The form that the answer must have, tool calls apart."""
    structure = structure_of(body, caps)
    if structure is not None:
        offer.require("grammar", structure.param)
    if tools is not None and tools.prescribed:
        offer.require("grammar", "tool_choice")
        if structure is not None:
            text = f"{structure.param} cannot go with a tool_choice that prescribes a call"
            raise invalid(text, structure.param)
    return structure


def _tenant_salt(body: GenerationBody, offer: Offer) -> bytes:
    """The client's salt at the length the contract allows."""
    if body.cache_salt is None:
        return b""
    offer.require("tenant_salt", "cache_salt")
    return sha256(body.cache_salt.encode()).digest()


def shows_stop(body: GenerationBody) -> bool:
    """True if the stop string that ends an answer stays in it."""
    return bool(body.include_stop_str_in_output or body.no_stop_trim)


def echoes(body: GenerationBody) -> bool:
    """True if the prompt's text shall stand before its answer."""
    return isinstance(body, CompletionBody) and bool(body.echo)


def asked_tier(body: GenerationBody) -> Any:
    """The service tier the request names, None without one."""
    return (body.model_extra or {}).get("service_tier")
