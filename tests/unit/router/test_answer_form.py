"""What answers are held to, tried with the workers' library, and how they are then read."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from outrider_router.openai.errors import ApiError, FieldNames, of_failure
from outrider_router.openai.form import Form, form_of
from outrider_router.openai.params import Offer, Wishes, wishes_of
from outrider_router.openai.schema import ChatBody, CompletionBody
from outrider_router.text.message import MessageReader, Reading
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_router.text.parts import CallArguments, CallBegun, Part, content_of, joined
from outrider_router.types import Failure, FailureCode, GrammarKind
from outrider_worker.constrain import Vocabulary
from outrider_worker.constrain.source import GrammarRefused, compile_grammar, parser_limits
from outrider_worker.engine.types import Grammar
from outrider_worker.engine.types import GrammarKind as WorkerKind
from tests.support import tool_models as models

CALL = models.template("<tool_call>{{ call.function | tojson }}</tool_call>", "[THINK]\n")
# Models that begin within thinking, with and without tokens for its markers.
TOKENS, SPELLED = models.THINKING, CALL + "{# [/THINK] #}"
LIBRARY = LLTokenizer(models.tokenizer_json().decode())
VOCABULARY = Vocabulary(LIBRARY, LIBRARY.vocab_size, frozenset({0}))
LIBRARY_READS: dict[GrammarKind, Callable[[str], str]] = {
    GrammarKind.JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
    GrammarKind.REGEX: LLMatcher.grammar_from_regex,
    GrammarKind.LARK: LLMatcher.grammar_from_lark,
}
SCHEMA = {"type": "integer"}
OFFER = Offer(frozenset({"grammar"}), 1000)
CHOICE = ["yes", "a.b|c"]
NAMED = {"type": "function", "function": {"name": "time"}}


def text_of(template: str) -> ModelText:
    assets = TextAssets(models.tokenizer_json(), b"", template)
    return ModelText(assets, lambda: datetime(2026, 11, 30))


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def asked(text: ModelText, fields: dict[str, Any]) -> tuple[ChatBody, Wishes]:
    messages = [{"role": "user", "content": "Hello"}]
    body = ChatBody.model_validate({"model": "tiny", "messages": messages, **fields})
    return body, wishes_of(body, OFFER, text)


def form(template: str, opened: bool = True, **fields: Any) -> Form:
    text = text_of(template)
    return form_of(*asked(text, fields), text, opened)


def fits(form: Form, text: str) -> bool:
    """True if a model held to the form may answer exactly this."""
    assert form.grammar is not None
    matcher = LLMatcher(LIBRARY, LIBRARY_READS[form.grammar.kind](form.grammar.text), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = models.encode(models.tokenizer_json(), text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def read(template: str, form: Form, answer: str) -> tuple[Part, ...]:
    text = text_of(template)
    how = Reading(text.thinking, not form.at_once, text.tool_format)
    reader = MessageReader(how)
    return joined([*reader.push(answer), *reader.finish()])


@pytest.mark.parametrize(
    ("template", "fields", "answer"),
    [
        (SPELLED, {"json_schema": SCHEMA}, "12"),
        (SPELLED, {"structured_outputs": {"choice": CHOICE}}, "a.b|c"),
        (SPELLED, {"guided_grammar": 'start: "yes"'}, "yes"),
        (SPELLED, {"json_schema": SCHEMA, "tools": [tool("time")]}, "12"),
        (TOKENS, {"guided_grammar": 'start: "yes"'}, "yes"),
        (TOKENS, {"response_format": {"type": "grammar", "grammar": 'start: "yes"'}}, "yes"),
    ],
)
def test_what_is_held_from_its_first_token_is_no_thinking(
    template: str, fields: dict[str, Any], answer: str
) -> None:
    held = form(template, **fields)
    assert fits(held, answer)
    assert content_of(read(template, held, answer)) == answer


def test_a_call_that_is_held_from_its_first_token_is_a_call() -> None:
    held = form(SPELLED, tools=[tool("time")], tool_choice=NAMED)
    call = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    assert fits(held, call)
    assert read(SPELLED, held, call) == (CallBegun(0, "time"), CallArguments(0, "{}"))


@pytest.mark.parametrize("choice", CHOICE)
def test_choices_leave_thinking_free_and_go_with_tools(choice: str) -> None:
    held = form(TOKENS, guided_choice=CHOICE)
    answer = f"hm</think>{choice}"
    assert fits(held, answer)
    assert not fits(held, choice)
    assert content_of(read(TOKENS, held, answer)) == choice
    assert fits(form(TOKENS, guided_choice=CHOICE, tools=[tool("time")]), answer)


def test_choices_are_taken_letter_for_letter() -> None:
    odd = ["a.b|c", "\\d+", "(x)[y]{z}^$*?", "1/2\n", "a b #-&~", "größer"]
    for held in (form(TOKENS, guided_choice=odd), form(models.HERMES, guided_choice=odd)):
        before = "" if held.at_once else "</think>"
        assert all(fits(held, before + one) for one in odd)
        assert not any(fits(held, before + other) for other in ("a-b|c", "7", "x", "a", ""))


NOT_THINKING = [
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
]


@pytest.mark.parametrize("fields", NOT_THINKING)
@pytest.mark.parametrize("opened", [True, False])
def test_who_turns_thinking_off_gets_none(fields: dict[str, Any], opened: bool) -> None:
    """Also from templates that open it whatever they are told: it is closed at once."""
    held = form(TOKENS, opened, json_schema=SCHEMA, **fields)
    before = "</think>\n\n" if opened else ""
    assert fits(held, f"{before}12")
    assert not fits(held, f"hm{before}12")
    assert not fits(held, "<think>hm</think>12")


def test_answers_to_raw_prompts_are_the_form_alone() -> None:
    text = text_of(TOKENS)
    body = CompletionBody.model_validate({"model": "tiny", "prompt": "x", "json_schema": SCHEMA})
    held = form_of(body, wishes_of(body, OFFER, text), text, False)
    assert fits(held, "12")
    assert not fits(held, "<think>hm</think>12")


def test_what_the_template_is_told_wins_over_the_effort() -> None:
    kwargs = {"enable_thinking": True}
    held = form(TOKENS, json_schema=SCHEMA, reasoning_effort="none", chat_template_kwargs=kwargs)
    assert fits(held, "hm</think>12")


@pytest.mark.parametrize(
    ("function", "arguments", "fit"),
    [
        ({}, "{}", True),
        ({}, '{"a": 1}', False),
        ({"parameters": None}, '{"a": 1}', False),
        ({"parameters": {}}, '{"a": 1}', True),
    ],
)
def test_a_tool_without_parameters_takes_none(
    function: dict[str, Any], arguments: str, fit: bool
) -> None:
    held = form(models.LLAMA, tools=[tool("time", **function)], tool_choice="required")
    assert fits(held, f'{{"name": "time", "parameters": {arguments}}}') is fit


def refused(held: Form, names: FieldNames) -> ApiError:
    """What a client is told whose grammar a worker's compiler has refused."""
    assert held.grammar is not None
    grammar = Grammar(WorkerKind(held.grammar.kind.value), held.grammar.text)
    with pytest.raises(GrammarRefused) as caught:
        compile_grammar(grammar, VOCABULARY, parser_limits())
    failure = caught.value.failure
    told = Failure(FailureCode(failure.code.value), failure.message, failure.param)
    return of_failure(told, names, delivered=False)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "banana"}, "Invalid type: banana"),
    ({"$ref": "#/nope"}, "Pointer '/nope' does not exist"),
    ({"pattern": "("}, "regex parse error:\n    (\n    ^\nerror: unclosed group"),
]


@pytest.mark.parametrize(("schema", "reason"), BAD)
def test_c09_a_tools_bad_schema_is_named_by_its_place(schema: Any, reason: str) -> None:
    tools = [tool("a"), tool("b", parameters={"$comment": "x" * 500}), tool("c", parameters=schema)]
    functions = [{"type": "function", "function": {"name": name}} for name in ("b", "c")]
    allowed = {"mode": "required", "tools": functions}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    held = form(models.HERMES, False, tools=tools, tool_choice=choice)
    error = refused(held, FieldNames("messages", "tools", held.lines))
    assert error.message == f"tools[2].function.parameters: {reason}"
    assert error.param == "tools[2].function.parameters"


def test_c09_so_is_a_bad_form_behind_thinking() -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": {"type": "banana"}}}
    held = form(TOKENS, response_format=wanted)
    error = refused(held, FieldNames("messages", "response_format", held.lines))
    place = "response_format.json_schema.schema"
    assert (error.message, error.param) == (f"{place}: Invalid type: banana", place)


def test_c09_a_grammar_of_the_clients_own_is_shown_its_lines() -> None:
    held = form(TOKENS, guided_grammar="start: )")
    error = refused(held, FieldNames("messages", "guided_grammar", held.lines))
    assert error.param == "guided_grammar"
    assert "1 | start: )" in error.message


@pytest.mark.parametrize("value", [True, "true"])
def test_a_schema_that_is_true_takes_any_json(value: Any) -> None:
    held = form(models.HERMES, guided_json=value)
    assert all(fits(held, json.dumps(one)) for one in (1, "x", [None], {"a": 1}))


@pytest.mark.parametrize("value", [False, "false"])
def test_a_schema_that_is_false_is_refused(value: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
    with pytest.raises(ApiError, match="no answer fits") as caught:
        form(models.HERMES, response_format=wanted)
    assert (caught.value.status, caught.value.param) == (400, "response_format.json_schema.schema")
