"""The tables of request fields: what is passed on, ignored, refused."""

from typing import Any

import pytest

from outrider_router.openai import params
from outrider_router.openai.errors import ApiError, of_failure
from outrider_router.openai.params import IGNORED, REFUSED, WORKER_OPTIONS, ignored_fields
from outrider_router.openai.schema import ChatBody, CompletionBody, GenerationBody, parse
from outrider_router.types import Failure, FailureCode

NO_OPTIONS: frozenset[str] = frozenset()
# For every refused field a value that asks for something.
ASKING: dict[str, Any] = {
    "audio": {"voice": "x"},
    "modalities": ["audio"],
    "web_search_options": {},
    "functions": [{}],
    "function_call": "auto",
    "store": True,
    "tools": [{}],
    "tool_choice": "required",
    "parallel_tool_calls": "x",
    "response_format": {"type": "json"},
    "structured_outputs": {"json": {}},
    "guided_json": {},
    "guided_regex": "a",
    "guided_choice": [],
    "guided_grammar": "a",
    "guided_decoding": {"json": {}},
    "guided_decoding_backend": "x",
    "structural_tag": {},
    "grammar": "a",
    "regex": "a",
    "ebnf": "a",
    "json_schema": "{}",
    "reasoning_effort": "high",
    "chat_template": "x",
    "chat_template_kwargs": {"a": 1},
    "documents": [{}],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "add_special_tokens": False,
    "logprobs": True,
    "top_logprobs": 3,
    "prompt_logprobs": 0,
    "return_tokens_as_token_ids": True,
    "best_of": 2,
    "echo": True,
    "suffix": "x",
    "bad_words": ["x"],
    "allowed_token_ids": [1],
    "priority": 1,
    "cache_salt": "x",
    "truncate_prompt_tokens": 5,
    "include_stop_str_in_output": True,
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": "x",
    "use_beam_search": True,
    "stream_interval": 2,
    "logits_processors": ["x"],
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


def wishes(**fields: Any) -> params.Wishes:
    return params.wishes_of(chat(**fields), NO_OPTIONS, vocab_size=100)


def test_every_refused_field_has_a_case_and_is_refused_by_name() -> None:
    assert set(ASKING) == set(REFUSED)
    for name, value in ASKING.items():
        with pytest.raises(ApiError) as caught:
            ignored_fields(chat(**{name: value}))
        assert (caught.value.status, caught.value.param) == (400, name)
        assert caught.value.code == "unsupported_parameter"


def test_values_that_ask_for_nothing_pass() -> None:
    assert ignored_fields(chat(**NEUTRAL)) == []
    assert ignored_fields(chat(**dict.fromkeys(REFUSED))) == []
    assert ignored_fields(chat(n=2, best_of=2)) == []


def test_tables_do_not_overlap_with_each_other_or_with_what_has_an_effect() -> None:
    acted_on = set(GenerationBody.model_fields) | set(ChatBody.model_fields)
    acted_on |= set(CompletionBody.model_fields)
    assert not IGNORED & set(REFUSED)
    assert not acted_on & (IGNORED | set(REFUSED))
    assert set(WORKER_OPTIONS) < acted_on


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
        assert params.wishes_of(body, frozenset({name}), 100).options == {name: other}


def test_logit_bias_needs_support_and_known_tokens() -> None:
    body = chat(logit_bias={"5": 1, "7": -2.5})
    with pytest.raises(ApiError, match="logit_bias"):
        params.wishes_of(body, NO_OPTIONS, 100)
    known = params.wishes_of(body, frozenset({"logit_bias"}), 100)
    assert known.logit_bias == ((5, 1.0), (7, -2.5))
    with pytest.raises(ApiError, match="outside the vocabulary"):
        params.wishes_of(body, frozenset({"logit_bias"}), 7)


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
        ("stop", list("abcde"), "stop: at most 4 stop strings"),
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


def test_top_p_zero_keeps_the_most_likely_token_only() -> None:
    assert 0 < wishes(top_p=0).top_p < 1e-3


@pytest.mark.parametrize(("wanted", "room", "given"), [(None, 9, 9), (5, 9, 5), (50, 9, 9)])
def test_max_tokens_is_cut_to_the_room_left(wanted: int | None, room: int, given: int) -> None:
    assert wishes(max_tokens=wanted).sampling(room).max_tokens == given


@pytest.mark.parametrize("code", list(FailureCode))
def test_failures_after_delivery_are_not_to_be_retried(code: FailureCode) -> None:
    before = of_failure(Failure(code, "x"), "messages", delivered=False)
    after = of_failure(Failure(code, "x"), "messages", delivered=True)
    assert before.status == after.status
    assert "x-should-retry" not in before.headers()
    if after.status in (408, 429, 500, 503):
        assert after.headers() == {"x-should-retry": "false"}
