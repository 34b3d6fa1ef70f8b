"""C06, C07: thinking and tool calls are found in a text however it is cut, and nothing is lost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_router.text.message import MessageReader, Reading
from outrider_router.text.parts import (
    CallArguments,
    CallBegun,
    Content,
    Part,
    Reasoning,
    content_of,
    joined,
)
from outrider_router.text.reasoning import ThinkingMarkers
from outrider_router.text.tool_formats import (
    DEEPSEEK_R1,
    DEEPSEEK_V31,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    tool_format_of,
)
from tests.support import tool_models

THINK = ThinkingMarkers("<think>", "</think>")
F, G = CallBegun(0, "f"), CallBegun(1, "g")
BARE_CALL = (F, CallArguments(0, "{}"))
ARGUMENTS = '{"a": "}\\"", "b": [1, {}]}'
R1_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31_CALL = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"


def deepseek(call: str) -> str:
    calls = call.format("f", ARGUMENTS) + "\n" + call.format("g", "{}")
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def two_calls(arguments: str = ARGUMENTS, more: str = "{}") -> tuple[Part, ...]:
    return (F, CallArguments(0, arguments), G, CallArguments(1, more))


def read(how: Reading, *pieces: str) -> tuple[Part, ...]:
    reader = MessageReader(how)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return joined([*parts, *reader.finish()])


TOOLS = Reading(tools=HERMES)
BARE = Reading(tools=LLAMA3)
CASES: list[tuple[Reading, str, tuple[Part, ...]]] = [
    (
        TOOLS,
        f'Sure.\n<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "g"}\n</tool_call>',
        (Content("Sure.\n"), *two_calls()),
    ),
    (
        TOOLS,
        '<tool_call>{"name": "f"}</tool_call> bye',
        (F, CallArguments(0, "{}"), Content("bye")),
    ),
    (
        TOOLS,
        "a <tool_call>\nnope</tool_call> <tool",
        (Content("a <tool_call>\nnope</tool_call> <tool"),),
    ),
    (TOOLS, '<tool_call>{"na', (Content('<tool_call>{"na'),)),
    (TOOLS, '<tool_call>{"name": "f", "x": 1}', (Content('<tool_call>{"name": "f", "x": 1}'),)),
    (TOOLS, '<tool_call>{"name": "f", "arguments": {"a', (F, CallArguments(0, '{"a'))),
    (
        TOOLS,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}',
        (F, CallArguments(0, '{"a": 1}')),
    ),
    (TOOLS, "1 < 2 <t> <tool_cal l>", (Content("1 < 2 <t> <tool_cal l>"),)),
    (
        Reading(tools=HERMES, many_calls=False),
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g"}',
        (F, CallArguments(0, "{}")),
    ),
    (
        BARE,
        f' {{"name": "f", "parameters": {ARGUMENTS}}}; {{"name": "g", "parameters": {{}}}}',
        two_calls(),
    ),
    (
        BARE,
        f'<|python_tag|>{{"type": "function", "name": "f", "parameters": {ARGUMENTS}}}',
        (F, CallArguments(0, ARGUMENTS)),
    ),
    (BARE, ' {"answer": 1} ok', (Content(' {"answer": 1} ok'),)),
    (BARE, "<|python_tag|>look.up(x)", (Content("<|python_tag|>look.up(x)"),)),
    (
        Reading(tools=MISTRAL),
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}}}, '
        '{"name": "g", "arguments": {}}]',
        two_calls(),
    ),
    (
        Reading(tools=MISTRAL_ARGS),
        f"ok[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{ARGUMENTS}[TOOL_CALLS]g[ARGS]{{}}",
        (Content("ok"), *two_calls()),
    ),
    (Reading(tools=DEEPSEEK_R1), f"Hm. {deepseek(R1_CALL)}", (Content("Hm. "), *two_calls())),
    (Reading(tools=DEEPSEEK_V31), deepseek(V31_CALL), two_calls()),
    (
        Reading(thinking=THINK, tools=HERMES),
        '<think>\n so <tool_call> \n</think>\n\nok <tool_call>{"name": "f"}</tool_call>',
        (Reasoning("so <tool_call>"), Content("ok "), F, CallArguments(0, "{}")),
    ),
    (Reading(thinking=THINK, thinking_open=True), "so </think\n\n", (Reasoning("so </think"),)),
    (
        Reading(thinking=THINK, thinking_open=True),
        "<think>so</think> <think>x</think>",
        (Reasoning("so"), Content("<think>x</think>")),
    ),
    (Reading(thinking=THINK), "  hello <think> x", (Content("  hello <think> x"),)),
    (
        Reading(),
        '<tool_call>{"name": "f"} <think> ',
        (Content('<tool_call>{"name": "f"} <think> '),),
    ),
]


@pytest.mark.parametrize(("how", "text", "parts"), CASES)
def test_every_cut_gives_the_same_message(how: Reading, text: str, parts: tuple[Part, ...]) -> None:
    assert read(how, text) == parts
    assert read(how, *text) == parts
    for at in range(1, len(text)):
        assert read(how, text[:at], text[at:]) == parts, f"cut at {at}"


words_of_calls = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", '{"name": "f", ', '"arguments": ', "{}", "}", '"', "\\"),
        *("<think>", "</think>", "[TOOL_CALLS]", "[", "]", ",", "f", "<", " ", "\n"),
        *("<|python_tag|>", ";", "[ARGS]"),
    ]
)
readings = st.builds(
    Reading,
    thinking=st.sampled_from([None, THINK]),
    thinking_open=st.booleans(),
    tools=st.sampled_from([None, HERMES, LLAMA3, MISTRAL]),
    many_calls=st.booleans(),
)


@given(how=readings, words=st.lists(words_of_calls, max_size=14), data=st.data())
def test_cuts_make_no_difference_to_any_text(
    how: Reading, words: list[str], data: st.DataObject
) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(how, text)
    assert read(how, *pieces) == whole
    begun = [part.call for part in whole if isinstance(part, CallBegun)]
    assert begun == list(range(len(begun)))
    assert how.many_calls or len(begun) <= 1


@given(words=st.lists(st.text("ab<{}[] \n", max_size=5), max_size=6))
def test_text_without_markers_is_content_letter_for_letter(words: list[str]) -> None:
    text = "".join(words)
    for tools in (HERMES, MISTRAL, DEEPSEEK_R1, LLAMA3):
        assert content_of(read(Reading(tools=tools, thinking=THINK), *words)) == text


def test_markers_are_held_back_and_content_is_not() -> None:
    reader = MessageReader(TOOLS)
    shown = [content_of(reader.push(piece)) for piece in ("a<tool", "x", "<tool_", "call", ">")]
    assert shown == ["a", "<toolx", "", "", ""]


def test_arguments_stream_as_they_come() -> None:
    reader = MessageReader(TOOLS)
    reader.push('<tool_call>{"name": "f", "arguments": ')
    pieces = ['{"a', '": "x\\', '"y"', "}", "}</tool_call>"]
    streamed = [joined(reader.push(piece)) for piece in pieces]
    assert streamed == [*[(CallArguments(0, piece),) for piece in pieces[:4]], ()]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (tool_models.HERMES, HERMES),
        (tool_models.LLAMA, LLAMA3),
        (tool_models.MISTRAL, MISTRAL),
        (tool_models.MISTRAL + "[ARGS]", MISTRAL_ARGS),
        (tool_models.DEEPSEEK, DEEPSEEK_R1),
        (tool_models.DEEPSEEK.replace("```json", ""), DEEPSEEK_V31),
        (tool_models.HERMES + "<function=f>", None),
        (tool_models.HERMES.replace("tool_call>", "call>"), None),
        ("{{ messages }}<tool_call>", None),
    ],
)
def test_formats_are_told_by_their_templates(template: str, expected: Any) -> None:
    assert tool_format_of(template) == expected
