"""How much a body may say: bounded before it is read, whatever its strings hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_router.openai.caps import DEFAULT_CAPS
from outrider_router.openai.errors import ApiError
from outrider_router.openai.json_body import (
    MAX_CONTAINERS,
    MAX_STRINGS,
    _outside_of_strings,
    json_value,
)
from outrider_router.text.depth import MAX_DEPTH

MAX_VALUES = DEFAULT_CAPS.json_values
strings = st.text(st.sampled_from('a"\\[{,]}:\n é🙂'), max_size=8)
values = st.recursive(
    st.one_of(st.none(), st.integers(), strings),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=12,
)


def shape(value: Any) -> str:
    """The value's JSON with every string gone."""
    if isinstance(value, str):
        return ""
    if isinstance(value, list):
        return f"[{','.join(map(shape, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f":{shape(item)}" for item in value.values()) + "}"
    return json.dumps(value)


@given(value=values, plain=st.booleans())
def test_what_stands_outside_of_strings_is_told_from_what_they_hold(
    value: Any, plain: bool
) -> None:
    body = json.dumps(value, ensure_ascii=plain, separators=(",", ":")).encode()
    assert _outside_of_strings(body).decode() == shape(value)
    assert json_value(bytearray(body)) == value


@pytest.mark.parametrize(
    "body",
    [
        "[" + "[]," * MAX_CONTAINERS + "0]",
        '[{"a":"' + '\\"' * 9 + '"}' + ',{"b":{}}' * (MAX_CONTAINERS // 2) + "]",
        "[0" + ",0" * (MAX_VALUES + 1) + "]",
        '[""' + ',""' * MAX_STRINGS + "]",
        '{"":0' + ',"\\\\":0' * MAX_STRINGS + "}",
    ],
    ids=["lists", "objects", "numbers", "strings", "names"],
)
def test_more_values_than_any_request_needs_are_refused(body: str) -> None:
    with pytest.raises(ApiError, match="the body holds more than") as refused:
        json_value(bytearray(body.encode()))
    assert refused.value.status == 400


def test_how_many_values_are_too_many_can_be_set() -> None:
    for count in (10, 100_000):
        ids = bytearray(json.dumps([7] * count).encode())
        assert len(json_value(ids, count)) == count
        with pytest.raises(ApiError, match=f"more than {count // 2} values"):
            json_value(ids, count // 2)


def test_texts_may_hold_as_many_brackets_and_commas_as_they_like() -> None:
    text = '[{",\\' * MAX_VALUES  # each of them more often than a body may have it
    assert json_value(bytearray(json.dumps({"a": text}).encode())) == {"a": text}
    ids = [0] * (MAX_VALUES - 1)
    assert json_value(bytearray(json.dumps(ids).encode())) == ids


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a":', b"\xff", b'"\\ud800"', b"[" * MAX_CONTAINERS]
)
def test_broken_json_is_said_to_be_broken(body: bytes) -> None:
    with pytest.raises(ApiError, match="not valid JSON") as told:
        json_value(bytearray(body))
    assert told.value.code == "invalid_json"


def test_what_is_broken_and_too_much_is_said_to_be_too_much() -> None:
    """It is never read, so nobody knows that it is broken."""
    with pytest.raises(ApiError, match=f"holds more than {MAX_VALUES} values") as told:
        json_value(bytearray(b"[" * (MAX_CONTAINERS + 1)))
    assert told.value.code != "invalid_json"


def test_depth_is_bounded() -> None:
    with pytest.raises(ApiError, match="nested deeper"):
        json_value(bytearray(b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2)))
