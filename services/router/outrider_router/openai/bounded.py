"""Types for large fields of a request body, checked without a wish to report every fault.

For a list pydantic collects an error per wrong element and member of a union; a client could make
that take seconds, in which nothing else is served. Here the kind of a whole list is decided first,
and the first fault is the only one.
"""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from outrider_router.openai.caps import Caps, caps_of

MAX_TOKEN_ID = 2**32 - 1
# Each may become two sequences of tokens, of which workers take 128.
MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS = 64, 256


def at_most(entries: int) -> BeforeValidator:
    """Refuses lists and objects with more entries before a look at any of them."""
    return at_most_of(lambda _caps: entries)


def at_most_of(limit: Callable[[Caps], int]) -> BeforeValidator:
    """As `at_most`, where the caps say how many."""

    def check(value: Any, info: ValidationInfo) -> Any:
        most = limit(caps_of(info))
        if isinstance(value, list | dict) and len(value) > most:
            numbers = {"count": len(value), "most": most}
            text = "{count} entries are more than the {most} allowed"
            raise PydanticCustomError("too_many_entries", text, numbers)
        return value

    return BeforeValidator(check)


def _token_ids(value: Any) -> list[int]:
    if _are_token_ids(value):
        ids: list[int] = value
        return ids
    raise PydanticCustomError("token_ids", "must be a list of token ids")


def _prompts(value: Any) -> list[str | list[int]]:
    """The prompts one by one, whichever of the four forms they came in."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _all_of(str, value):
            return value
        if _are_token_ids(value):
            return [value]
        if _all_of(list, value) and all(one and _are_token_ids(one) for one in value):
            return value
    raise PydanticCustomError(
        "prompt", "must be a string, token ids, or a list of either; no list may be empty"
    )


def _stops(value: Any, info: ValidationInfo) -> list[str]:
    """The stop strings one by one; a single one may come without its list."""
    caps = caps_of(info)
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not _all_of(str, stops):
        raise PydanticCustomError("stop", "must be a string or a list of strings")
    if len(stops) > caps.stops:
        numbers = {"count": len(stops), "most": caps.stops}
        raise PydanticCustomError(
            "stop", "{count} stop strings are more than the {most} allowed", numbers
        )
    if not all(0 < len(stop) <= caps.stop_characters for stop in stops):
        numbers = {"most": caps.stop_characters}
        raise PydanticCustomError("stop", "a stop string must have 1 to {most} characters", numbers)
    return stops


def _bad_words(value: Any) -> list[str]:
    if not isinstance(value, list) or not _all_of(str, value) or len(value) > MAX_BAD_WORDS:
        limits = {"most": MAX_BAD_WORDS}
        raise PydanticCustomError("bad_words", "must be a list of at most {most} strings", limits)
    if not all(word.strip() and len(word) <= MAX_BAD_WORD_CHARACTERS for word in value):
        limits = {"most": MAX_BAD_WORD_CHARACTERS}
        text = "a bad word must have 1 to {most} characters"
        raise PydanticCustomError("bad_words", text, limits)
    return value


def _are_token_ids(value: Any) -> bool:
    """Whole numbers that fit the wire; a bool is none."""
    if not isinstance(value, list) or not _all_of(int, value):
        return False
    return not value or (min(value) >= 0 and max(value) <= MAX_TOKEN_ID)


def _all_of(kind: type, values: list[Any]) -> bool:
    """Every value is exactly of this kind; one pass at the speed of the interpreter's own loops."""
    return set(map(type, values)) <= {kind}


_TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]

TokenIds = Annotated[list[int], PlainValidator(_token_ids, json_schema_input_type=list[_TokenId])]
Stops = Annotated[
    list[str],
    PlainValidator(_stops, json_schema_input_type=str | list[str]),
]
Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(
        _prompts, json_schema_input_type=str | list[str] | list[_TokenId] | list[list[_TokenId]]
    ),
]
BadWords = Annotated[
    list[str],
    PlainValidator(
        _bad_words,
        json_schema_input_type=Annotated[list[str], Field(max_length=MAX_BAD_WORDS)],
    ),
]
