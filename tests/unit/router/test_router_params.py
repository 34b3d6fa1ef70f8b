"""The tables of request fields: what is passed on, ignored, refused."""

from dataclasses import fields
from datetime import datetime
from typing import Any

import pytest
from pydantic import ValidationError

from outrider_router.openai import params
from outrider_router.openai.caps import Caps
from outrider_router.openai.errors import ApiError, FieldNames, of_failure
from outrider_router.openai.fields import (
    CHAT_ONLY,
    COMPLETION_ONLY,
    IGNORED,
    REFUSED,
    ignored_fields,
)
from outrider_router.openai.params import WORKER_OPTIONS, Offer
from outrider_router.openai.schema import ChatBody, CompletionBody, GenerationBody, parse
from outrider_router.settings import RouterSettings
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_router.types import Failure, FailureCode
from tests.support import tiny_tokenizers as tiny

NO_OPTIONS: frozenset[str] = frozenset()
TEXT = ModelText(
    TextAssets(tiny.byte_level_json(), tiny.tokenizer_config_json(), ""),
    lambda: datetime(2026, 11, 30),
)
# For every refused field a value that asks for something.
ASKING: dict[str, Any] = {
    "audio": {"voice": "x"},
    "modalities": ["audio"],
    "web_search_options": {},
    "functions": [{}],
    "function_call": "auto",
    "store": True,
    "guided_decoding": {"json": {}},
    "structural_tag": {},
    "grammar": "a",
    "chat_template": "x",
    "documents": [{}],
    "add_special_tokens": False,
    "prompt_logprobs": 0,
    "suffix": "x",
    "allowed_token_ids": [1],
    "spaces_between_special_tokens": "x",
    "use_beam_search": True,
    "logits_processors": ["x"],
}
# And for fields of one endpoint that come to the other.
CHAT_ASKING: dict[str, Any] = {
    "messages": [],
    "max_completion_tokens": 5,
    "tools": [{}],
    "tool_choice": "required",
    "parallel_tool_calls": "x",
    "reasoning_effort": "high",
    "chat_template_kwargs": {"a": 1},
    "add_generation_prompt": False,
    "continue_final_message": True,
    "top_logprobs": 3,
}
NEUTRAL: dict[str, Any] = {
    "modalities": ["text"],
    "function_call": "none",
    "store": False,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "response_format": {"type": "text"},
    "chat_template_kwargs": {},
    "add_generation_prompt": True,
    "logprobs": False,
    "top_logprobs": 0,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "skip_special_tokens": True,
    "reasoning_effort": "none",
    "priority": 0,
    "stream_interval": 1,
    "bad_words": [],
}


def chat(**fields: Any) -> ChatBody:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    return parse(ChatBody, body | fields)


def completion(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, {"model": "m", "prompt": "x"} | fields)


def wishes_with(body: GenerationBody, options: frozenset[str] = NO_OPTIONS) -> params.Wishes:
    return params.wishes_of(body, Offer(options, vocab_size=100), TEXT)


def wishes(**fields: Any) -> params.Wishes:
    return wishes_with(chat(**fields))


def refused_by_name(body: GenerationBody, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        ignored_fields(body)
    assert (caught.value.status, caught.value.param) == (400, name)
    assert caught.value.code == "unsupported_parameter"


def test_every_refused_field_has_a_case_and_is_refused_by_name() -> None:
    assert set(ASKING) == set(REFUSED)
    for name, value in ASKING.items():
        refused_by_name(chat(**{name: value}), name)
        refused_by_name(completion(**{name: value}), name)


def test_fields_of_one_endpoint_are_refused_by_the_other() -> None:
    only_read = {"include_reasoning", "separate_reasoning"}
    assert set(CHAT_ASKING) | only_read == set(CHAT_ONLY)
    for name, value in CHAT_ASKING.items():
        refused_by_name(completion(**{name: value}), name)
    refused_by_name(chat(prompt="x"), "prompt")
    refused_by_name(chat(echo=True), "echo")
    assert ignored_fields(completion(**dict.fromkeys(only_read, True))) == []


def test_values_that_ask_for_nothing_pass() -> None:
    assert ignored_fields(chat(**NEUTRAL)) == []
    assert ignored_fields(chat(**dict.fromkeys(REFUSED))) == []
    assert ignored_fields(completion(**dict.fromkeys(CHAT_ONLY))) == []


@pytest.mark.parametrize(
    ("n", "best_of", "code"),
    [
        *((2, 2, None), (None, 1, None), (2, None, None), (1, 2, "unsupported_parameter")),
        *((2, 1, "invalid_value"), (1, "1", "invalid_value"), (1, True, "invalid_value")),
    ],
)
def test_best_of_may_only_be_n(n: int | None, best_of: Any, code: str | None) -> None:
    body = completion(n=n, best_of=best_of)
    if code is None:
        assert ignored_fields(body) == []
        return
    with pytest.raises(ApiError) as caught:
        ignored_fields(body)
    assert (caught.value.param, caught.value.code) == ("best_of", code)


def test_tables_do_not_overlap_with_each_other_or_with_what_has_an_effect() -> None:
    for_chat, for_completions = set(ChatBody.model_fields), set(CompletionBody.model_fields)
    assert not IGNORED & set(REFUSED)
    assert not (for_chat | for_completions) & (IGNORED | set(REFUSED))
    assert not for_chat & set(COMPLETION_ONLY)
    assert not for_completions & set(CHAT_ONLY)
    assert set(WORKER_OPTIONS) < for_chat & for_completions


def test_ignored_fields_are_named_and_unknown_ones_are_not() -> None:
    assert sorted(ignored_fields(chat(user="u", verbosity="low", zzz=1))) == [
        "other",
        "user",
        "verbosity",
    ]
    options = {"include_usage": True, "include_obfuscation": False}
    assert ignored_fields(chat(stream=True, stream_options=options)) == ["other"]


def test_options_go_on_only_where_the_worker_lists_them() -> None:
    for name, neutral in WORKER_OPTIONS.items():
        assert wishes(**{name: neutral}).options == {}
        other = neutral + 1 if name == "min_tokens" else neutral + 0.25
        with pytest.raises(ApiError, match=f"{name} is not supported by this model's workers"):
            wishes(**{name: other})
        body = chat(**{name: other})
        assert wishes_with(body, frozenset({name})).options == {name: other}


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("logprobs", True, "logprobs"),
        ("bad_words", ["x"], "bad_words"),
        ("cache_salt", "x", "tenant_salt"),
        ("response_format", {"type": "json_object"}, "grammar"),
        ("regex", "a+", "grammar"),
        ("prediction", {"type": "content", "content": "x"}, "prediction_ids"),
    ],
)
def test_what_needs_the_worker_is_refused_by_the_clients_name(
    field: str, value: Any, option: str
) -> None:
    body = chat(**{field: value})
    with pytest.raises(ApiError) as caught:
        wishes_with(body)
    assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")
    assert wishes_with(body, frozenset({option})).choices == 1


def test_logit_bias_needs_support_and_known_tokens() -> None:
    body = chat(logit_bias={"5": 1, "7": -2.5})
    offered = frozenset({"logit_bias"})
    with pytest.raises(ApiError, match="logit_bias"):
        wishes_with(body)
    assert wishes_with(body, offered).logit_bias == ((5, 1.0), (7, -2.5))
    with pytest.raises(ApiError, match="outside the vocabulary"):
        wishes_with(chat(logit_bias={"100": 1}), offered)


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False}, None),
        ({"top_logprobs": 0}, None),
    ],
)
def test_logprobs_of_chats(fields: dict[str, Any], top: int | None) -> None:
    assert wishes_with(chat(**fields), frozenset({"logprobs"})).top_logprobs == top


def test_logprobs_of_completions_are_a_number() -> None:
    offered = frozenset({"logprobs"})
    assert wishes_with(completion(logprobs=0), offered).top_logprobs == 0
    assert wishes_with(completion(logprobs=5), offered).top_logprobs == 5
    for bad in (completion, chat):
        with pytest.raises(ApiError, match="logprobs"):
            wishes_with(bad(logprobs=21, top_logprobs=0), offered)
    with pytest.raises(ApiError, match="top_logprobs needs logprobs"):
        wishes_with(chat(top_logprobs=3), offered)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "choices": 1, "seed": None}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 7, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"stop": "a"}, {"stops": ("a",)}),
        ({"stop": ["a", "b"]}, {"stops": ("a", "b")}),
        ({"stop": []}, {"stops": ()}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
    ],
)
def test_wishes(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    result = wishes(**fields)
    assert {name: getattr(result, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", list("abcde"), "stop: 5 stop strings are more than the 4 allowed"),
        ("tools", [{}] * 129, "tools: 129 entries are more than the 128 allowed"),
        ("messages", [{}] * 4097, "messages: 4097 entries are more than the 4096 allowed"),
        ("stop", [""], "stop: a stop string must have 1 to 1024 characters"),
        ("stop", "", "stop: a stop string must have 1 to 1024 characters"),
        ("stop", ["x" * 1025], "stop: a stop string must have 1 to 1024 characters"),
        ("stop", ["a", 1], "stop: must be a string or a list of strings"),
        ("stop", {"a": 1}, "stop: must be a string or a list of strings"),
        ("speculation", True, "speculation: must be an object"),
        ("stream_options", "usage", "stream_options: must be an object"),
    ],
)
def test_faults_are_told_in_words_of_the_api(field: str, value: Any, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("field", "cap", "fits", "too_much"),
    [
        ("messages", "messages", [{}] * 2, [{}] * 3),
        ("tools", "tools", [{}] * 2, [{}] * 3),
        ("stop", "stops", ["a"] * 2, ["a"] * 3),
        ("stop", "stop_characters", "ab", "abc"),
        ("logit_bias", "logit_biases", {"1": 1, "2": 1}, {"1": 1, "2": 1, "3": 1}),
    ],
)
def test_how_much_a_request_may_hold_is_up_to_the_operator(
    field: str, cap: str, fits: Any, too_much: Any
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    caps = Caps(**{cap: 2})
    assert parse(ChatBody, body | {field: fits}, caps)
    with pytest.raises(ApiError) as caught:
        parse(ChatBody, body | {field: too_much}, caps)
    assert (caught.value.status, caught.value.param) == (400, field)
    assert " 2 " in caught.value.message
    assert parse(ChatBody, body | {field: too_much})


def test_grammars_are_no_longer_than_the_operator_allows() -> None:
    offered = Offer(frozenset({"grammar"}), vocab_size=100)
    for regex, caps in (("a" * 9, Caps(grammar_bytes=9)), ("a" * 10, Caps(grammar_bytes=10))):
        assert params.wishes_of(chat(regex=regex), offered, TEXT, caps).structure
    with pytest.raises(ApiError, match="regex is longer than 9 bytes"):
        params.wishes_of(chat(regex="ä" * 5), offered, TEXT, Caps(grammar_bytes=9))


def test_settings_say_how_much_a_request_may_hold() -> None:
    """And never more than workers take."""
    names = {field.name for field in fields(Caps)}
    assert names == {
        *("messages", "tools", "stops", "stop_characters", "logit_biases"),
        *("grammar_bytes", "prediction_tokens", "json_values"),
    }
    settings = RouterSettings.model_validate({f"max_{name}": 7 for name in names})
    assert settings.caps == Caps(*[7] * len(names))
    assert RouterSettings().caps == Caps()
    for name in ("logit_biases", "grammar_bytes", "prediction_tokens"):
        with pytest.raises(ValidationError, match=name):
            RouterSettings.model_validate({f"max_{name}": getattr(Caps(), name) + 1})


def test_top_p_zero_keeps_the_most_likely_token_only() -> None:
    assert 0 < wishes(top_p=0).top_p < 1e-3


@pytest.mark.parametrize(("wanted", "room", "given"), [(None, 9, 9), (5, 9, 5), (50, 9, 9)])
def test_max_tokens_is_cut_to_the_room_left(wanted: int | None, room: int, given: int) -> None:
    assert wishes(max_tokens=wanted).sampling(room).max_tokens == given


@pytest.mark.parametrize("code", list(FailureCode))
def test_failures_after_delivery_are_not_to_be_retried(code: FailureCode) -> None:
    before = of_failure(Failure(code, "x"), FieldNames("messages"), delivered=False)
    after = of_failure(Failure(code, "x"), FieldNames("messages"), delivered=True)
    assert before.status == after.status
    assert "x-should-retry" not in before.headers()
    if after.status in (408, 429, 500, 503):
        assert after.headers() == {"x-should-retry": "false"}
