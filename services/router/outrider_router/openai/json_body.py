"""A body as JSON: what it says is bounded before it is read, since reading keeps everybody waiting.

A text of megabytes is one value and read at once. A list of a million empty lists takes a hundred
times as long, and so does whatever walks through it later.
"""

import json
import re
from typing import Any

from outrider_router.openai.caps import DEFAULT_CAPS
from outrider_router.openai.errors import invalid
from outrider_router.text.depth import MAX_DEPTH, is_too_deep

MAX_CONTAINERS = 1 << 16
"""Lists and objects among a body's values."""
MAX_STRINGS = 1 << 17
"""Texts among them, and names of fields."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def json_value(body: bytes | bytearray, most_values: int = DEFAULT_CAPS.json_values) -> Any:
    """What the body says, in at most so many values.

    Raises:
        ApiError: 400 for broken JSON, and for too many values or levels.
    """
    if len(body) > min(MAX_CONTAINERS, most_values) and _holds_too_much(body, most_values):
        limits = f"{MAX_CONTAINERS} lists and objects, or {MAX_STRINGS} strings"
        raise invalid(f"the body holds more than {most_values} values, {limits}", None)
    try:
        # Left to itself, json also reads UTF-16, and halves of characters in either.
        value = json.loads(body.decode("utf-8-sig"))
        if _SURROGATE.search(body):
            # JSON can name halves of characters, which no text in UTF-8 has.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}", None, "invalid_json") from error
    # Counted first: few bodies have so many brackets, and none is looked through without need.
    if _brackets(body) > MAX_DEPTH and is_too_deep(value):
        raise invalid(f"the body is nested deeper than {MAX_DEPTH} levels", None)
    return value


def _holds_too_much(body: bytes | bytearray, most_values: int) -> bool:
    """Whether it is over a limit; what is counted everywhere is seldom too much."""
    if not _is_over(body, most_values) and body.count(b'"') <= 2 * MAX_STRINGS:
        return False
    # Before the body is cut up, which takes time as the number of strings does.
    if _unescaped(body).count(b'"') > 2 * MAX_STRINGS:
        return True
    return _is_over(_outside_of_strings(body), most_values)


def _is_over(text: bytes | bytearray, most_values: int) -> bool:
    return _brackets(text) > MAX_CONTAINERS or text.count(b",") > most_values


def _brackets(text: bytes | bytearray) -> int:
    return text.count(b"{") + text.count(b"[")


def _unescaped(body: bytes | bytearray) -> bytes | bytearray:
    """The body without backslashes and quotes that strings hold."""
    return body.replace(rb"\\", b"").replace(rb"\"", b"")


def _outside_of_strings(body: bytes | bytearray) -> bytes:
    """What stands between the strings."""
    return b"".join(_unescaped(body).split(b'"')[::2])
