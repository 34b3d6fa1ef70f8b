"""The grammars the router writes, tried with the library that workers use."""

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from outrider_router.text.control import ControlTokens, control_tokens_of
from outrider_router.text.tokenizer import ModelTokenizer
from outrider_router.text.tool_formats import (
    DEEPSEEK_R1,
    DEEPSEEK_V31,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    ToolFormat,
)
from outrider_router.text.tool_grammar import (
    ToolSchema,
    calls_rules,
    json_rule,
    regex_rule,
    thinking_then,
)
from tests.support import tool_models

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    ToolSchema("f", CITY | {"additionalProperties": False}),
    ToolSchema("g", {"type": "object"}),
]
ARGUMENTS = '{"city": "Rome"}'
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", SEP, BEGIN, END, ALL, ALL_END)
PLAIN, KNOWING = tool_models.tokenizer_json(), tool_models.tokenizer_json((), MARKERS)
# For each family two calls, one call, and what is no call of these tools.
WRITTEN: list[tuple[ToolFormat, str, str]] = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>', "\n"),
    (LLAMA3, '{"name": "f", "parameters": %s}', "; "),
    (MISTRAL, '{"name": "f", "arguments": %s}', ", "),
    (MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]%s", ""),
    (DEEPSEEK_R1, f"{BEGIN}function{SEP}f\n```json\n%s\n```{END}", "\n"),
    (DEEPSEEK_V31, f"{BEGIN}f{SEP}%s{END}", ""),
]


def control_of(source: bytes) -> ControlTokens:
    return ControlTokens(control_tokens_of(ModelTokenizer(source)._library))


def fits(source: bytes, grammar: str, text: str) -> bool:
    """True if a model with this tokenizer may write exactly this text."""
    matcher = LLMatcher(
        LLTokenizer(source.decode()), LLMatcher.grammar_from_lark(grammar), log_level=0
    )
    assert not matcher.is_error(), matcher.get_error()
    ids = tool_models.encode(source, text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize("source", [PLAIN, KNOWING], ids=["spelled", "tokens"])
@pytest.mark.parametrize(("style", "call", "separator"), WRITTEN)
def test_calls_fit_and_nothing_else_does(
    source: bytes, style: ToolFormat, call: str, separator: str
) -> None:
    def grammar(many: bool) -> str:
        return f"start: calls\n{calls_rules(TOOLS, style, control_of(source), many)}"

    def text(*calls: str) -> str:
        return style.before + separator.join(calls) + style.after

    good = call % ARGUMENTS
    assert fits(source, grammar(True), text(good))
    assert fits(source, grammar(True), text(good, good))
    assert fits(source, grammar(False), text(good))
    assert not fits(source, grammar(False), text(good, good))
    assert not fits(source, grammar(True), text(call % '{"city": 1}'))
    assert not fits(source, grammar(True), text(good.replace("f", "h", 1)))
    assert not fits(source, grammar(True), "hello")


def test_references_in_a_tools_schema_are_found() -> None:
    schema: dict[str, Any] = {
        "$defs": {"place": {"type": "string", "enum": ["Rome"]}},
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/place"}},
        "required": ["city"],
    }
    rules = calls_rules([ToolSchema("f", schema)], LLAMA3, control_of(PLAIN), False)
    assert fits(PLAIN, f"start: calls\n{rules}", '{"name": "f", "parameters": {"city": "Rome"}}')
    assert not fits(PLAIN, f"start: calls\n{rules}", '{"name": "f", "parameters": {"city": "Ro"}}')


@pytest.mark.parametrize(
    ("text", "opened", "fit"),
    [
        ('hm {"a</think>\n\n{}', True, True),
        ("</think>{}", True, True),
        ("{}", True, False),
        ("<think>hm</think>{}", False, True),
        ("{}", False, True),
        ("hm</think>{}", False, False),
    ],
)
def test_thinking_is_free_and_what_follows_is_not(text: str, opened: bool, fit: bool) -> None:
    start = thinking_then("answer", ("<think>", "</think>"), control_of(PLAIN), opened)
    assert start is not None
    grammar = f"{start}\n{json_rule('answer', {'type': 'object'})}"
    assert fits(PLAIN, grammar, text) is fit


@pytest.mark.parametrize("style", [HERMES, MISTRAL_ARGS])
def test_blanks_in_arguments_come_to_an_end(style: ToolFormat) -> None:
    """A model in doubt would write them for ever."""
    written = next(call for family, call, _ in WRITTEN if family is style)
    rules = calls_rules(TOOLS, style, control_of(PLAIN), False)
    for blanks, fit in ((64, True), (65, False)):
        arguments = "{" + " " * blanks + ARGUMENTS[1:]
        text = style.before + written % arguments + style.after
        assert fits(PLAIN, f"start: calls\n{rules}", text) is fit


def test_thinking_needs_tokens_for_its_markers() -> None:
    assert thinking_then("answer", ("[THINK]", "[/THINK]"), control_of(PLAIN), True) is None


def test_patterns_keep_their_slashes() -> None:
    grammar = "start: answer\n" + regex_rule("answer", "a/[/]b\\/\nc")
    assert fits(PLAIN, grammar, "a//b/\nc")
    assert not fits(PLAIN, grammar, "a/b/\nc")


def test_a_line_end_behind_a_backslash_is_one() -> None:
    grammar = "start: answer\n" + regex_rule("answer", "x\\\ny\\\\\n")
    assert fits(PLAIN, grammar, "x\ny\\\n")
    assert not fits(PLAIN, grammar, "xny\\\n")
