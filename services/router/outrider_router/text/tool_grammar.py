"""Grammars for answers whose form is prescribed: tool calls, JSON, and what may stand before them.

Written in Lark as the worker's library reads it: `%json` takes a schema, `<[7]>` is the token with
id 7. Where a model has a marker as a token of its own, the grammar must name the token, because
the same letters written with other tokens are another text to it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider_router.text.control import ControlTokens
from outrider_router.text.tool_formats import ARGUMENTS, CALL, NAME, ToolFormat

# Blanks between thinking and answer; without a bound a model in doubt writes them for ever.
_BLANKS = r"/[ \n]{0,4}/"
# The same between JSON's tokens, by the library's own key in a schema.
_JSON_OPTIONS = {"x-guidance": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"}}
# A letter behind a backslash, which says what it is already, or what would end the rule.
_IN_PATTERN = re.compile(r"\\.|/|\n", re.DOTALL)
_QUOTED = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
_FREE_TEXT = "FREE_TEXT: /(?s:.+)/"


@dataclass(frozen=True)
class ToolSchema:
    """One tool: its name, the JSON schema of its arguments, and the field that holds the schema."""

    name: str
    parameters: Mapping[str, Any]
    param: str = "tools"


def calls_rules(
    tools: Sequence[ToolSchema], style: ToolFormat, control: ControlTokens, many: bool
) -> str:
    """Rules of which `calls` stands for one or more calls, or for exactly one."""
    names = [_call_name(at) for at in range(len(tools))]
    separator = _spelled(style.separator, control)
    further = f"({separator} call)*" if many else ""
    before, after = _spelled(style.before, control), _spelled(style.after, control)
    rules = [f"calls: {before} call {further} {after}", f"call: {' | '.join(names)}"]
    for name, tool in zip(names, tools, strict=True):
        rules += _call_rules(name, tool, style, control)
    return "\n".join(rules)


def schema_rules(tools: Sequence[ToolSchema]) -> dict[str, str]:
    """Of the rules that hold the tools' schemas: name, and the request's field it was made of."""
    return {_json_name(_call_name(at)): tool.param for at, tool in enumerate(tools)}


def _call_name(at: int) -> str:
    return f"call_{at}"


def _json_name(rule: str) -> str:
    return f"{rule}_json"


def _call_rules(
    rule: str, tool: ToolSchema, style: ToolFormat, control: ControlTokens
) -> list[str]:
    """A call of one tool, and the rule for its JSON."""
    gap, schema = ARGUMENTS, dict(tool.parameters)
    if CALL in style.call:
        gap, schema = CALL, _call_object(tool, style.arguments_key)
    head, tail = style.call.replace(NAME, tool.name).split(gap)
    inner = _json_name(rule)
    body = f"{_spelled(head, control)} {inner} {_spelled(tail, control)}"
    return [f"{rule}: {body}", json_rule(inner, schema)]


def _call_object(tool: ToolSchema, arguments_key: str) -> dict[str, Any]:
    """The schema of a call as one JSON object."""
    parameters = dict(tool.parameters)
    named = [key for key in ("$defs", "definitions") if key in parameters]
    definitions: dict[str, Any] = {key: parameters.pop(key) for key in named}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, arguments_key: parameters},
        "required": ["name", arguments_key],
        "additionalProperties": False,
        **definitions,  # references are looked up at the schema's root
    }


def json_rule(name: str, schema: Mapping[str, Any]) -> str:
    """A rule for JSON of a schema."""
    return f"{name}: %json {json.dumps({**_JSON_OPTIONS, **schema}, ensure_ascii=False)}"


def regex_rule(name: str, pattern: str) -> str:
    """A rule for text that matches a pattern, whose last letter must not be a lone backslash."""
    return f"{name}: /{_IN_PATTERN.sub(_delimited, pattern)}/"


def _delimited(match: re.Match[str]) -> str:
    """A piece of a pattern as it may stand between slashes, on one line."""
    return _QUOTED.get(match.group(), match.group())


def thinking_then(
    body: str, markers: tuple[str, str], control: ControlTokens, opened: bool, free: bool = True
) -> str | None:
    """The start rule for thinking, if the model wants, and then `body`.

    None where the model has no tokens for the markers: the end of the thinking could not be told.

    Args:
        body: what follows.
        markers: around the thinking.
        control: the model's tokens.
        opened: the prompt ends within thinking.
        free: false forbids thinking; what the prompt has opened is closed at once.
    """
    opener, closer = (_spelled(marker, control) for marker in markers)
    if not (opener.startswith("<[") and closer.startswith("<[")):
        return None
    match opened, free:
        case True, True:
            return f"start: FREE_TEXT? {closer} {_BLANKS} {body}\n{_FREE_TEXT}"
        case True, False:
            return f"start: {closer} {_BLANKS} {body}"
        case False, True:
            return f"start: ({opener} FREE_TEXT? {closer} {_BLANKS})? {body}\n{_FREE_TEXT}"
        case _:
            return f"start: {body}"


def _spelled(text: str, control: ControlTokens) -> str:
    """A text as grammar symbols: tokens where the model has them, strings between."""
    symbols: list[str] = []
    done = 0
    for span in control.find(text):
        symbols += [_quoted(text[done : span.start]), f"<[{span.token_id}]>"]
        done = span.end
    return " ".join(symbol for symbol in [*symbols, _quoted(text[done:])] if symbol)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
