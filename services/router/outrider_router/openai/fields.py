"""Which request fields are ignored, and which are refused: one table each.

A field we do not know is accepted and counted, as other servers do. A field we know and cannot
honour is refused by name, unless its value asks for nothing. Fields of one endpoint only are
refused by the other. What has an effect is declared in `schema`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from outrider_router.openai.errors import invalid, unsupported
from outrider_router.openai.schema import GenerationBody

OTHER_FIELD = "other"

# Accepted without effect and counted; they steer the provider's business, not the text.
IGNORED = frozenset(
    {
        *("service_tier", "metadata", "safety_identifier", "prompt_cache_key", "user"),
        *("prompt_cache_retention", "prompt_cache_options", "verbosity", "moderation"),
        *("session_id", "request_id", "rid", "guided_decoding_backend"),
    }
)


def _is(*neutral: Any) -> Callable[[Any], bool]:
    """True for values that ask for nothing; null always does."""
    return lambda value: any(value == item and type(value) is type(item) for item in neutral)


def _empty(value: Any) -> bool:
    return value in ({}, [], "")


def _any(_value: Any) -> bool:
    return True


# Refused unless the test says that the value asks for nothing.
REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "audio": _is(),
    "modalities": _is(["text"]),
    "web_search_options": _is(),
    "functions": _empty,
    "function_call": _is("none"),
    "store": _is(False),
    "guided_decoding": _empty,
    "structural_tag": _is(),
    "grammar": _is(),
    "chat_template": _is(),
    "documents": _empty,
    "add_special_tokens": _is(),
    "prompt_logprobs": _is(),
    "suffix": _empty,
    "allowed_token_ids": _empty,
    "spaces_between_special_tokens": _is(True, False),
    "use_beam_search": _is(False),
    "logits_processors": _empty,
}
# Fields of chat completions that ask completions for something.
CHAT_ONLY: Mapping[str, Callable[[Any], bool]] = {
    "messages": _is(),
    "max_completion_tokens": _is(),
    "tools": _empty,
    "tool_choice": _is("none", "auto"),
    "parallel_tool_calls": _is(True, False),
    "reasoning_effort": _is("none"),
    "include_reasoning": _any,
    "separate_reasoning": _any,
    "chat_template_kwargs": _empty,
    "add_generation_prompt": _is(True),
    "continue_final_message": _is(False),
    "top_logprobs": _is(0),
}
# And the other way round.
COMPLETION_ONLY: Mapping[str, Callable[[Any], bool]] = {"prompt": _is(), "echo": _is(False)}
_KNOWN = {**REFUSED, **CHAT_ONLY, **COMPLETION_ONLY}


def ignored_fields(body: GenerationBody) -> list[str]:
    """Names of the fields that have no effect, for counting.

    Raises:
        ApiError: 400 `unsupported_parameter` for a field we know and cannot honour.
    """
    ignored = []
    for name, value in (body.model_extra or {}).items():
        if name == "best_of":
            _check_best_of(value, body.n or 1)
        elif value is None or (name in _KNOWN and _KNOWN[name](value)):
            continue
        elif name in _KNOWN:
            raise unsupported(name)
        else:
            ignored.append(name if name in IGNORED else OTHER_FIELD)
    options = body.stream_options
    if options is not None and options.model_extra:
        ignored += [OTHER_FIELD] * len(options.model_extra)
    return ignored


def _check_best_of(value: Any, choices: int) -> None:
    """Nobody chooses among answers here: as many must be wanted as are made."""
    if value is None or (value == choices and type(value) is int):
        return
    if type(value) is not int or value < choices:
        raise invalid("best_of must be a number, at least n", "best_of")
    raise unsupported("best_of", "above n is not supported")
