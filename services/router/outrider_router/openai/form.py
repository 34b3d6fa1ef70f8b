"""From what a request wants of its answer to how it is held to it and how its text is read.

Joins tools, prescribed forms and the model's thinking, which only together give one grammar.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_router.openai.errors import invalid
from outrider_router.openai.messages import template_variables
from outrider_router.openai.params import Wishes, shows_stop
from outrider_router.openai.schema import ChatBody, GenerationBody
from outrider_router.openai.structure import Structure
from outrider_router.openai.tools import ToolUse
from outrider_router.text.assemble import TextRules
from outrider_router.text.message import Reading
from outrider_router.text.model_text import ModelText
from outrider_router.text.reasoning import ThinkingMarkers
from outrider_router.text.tool_grammar import (
    calls_rules,
    json_rule,
    regex_rule,
    schema_rules,
    thinking_then,
)
from outrider_router.types import Grammar, GrammarKind

_ANSWER = "answer"
# What templates call the switch; without it they decide for themselves.
_THINKING_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Form:
    """What an answer is held to; by default to nothing.

    Attributes:
        grammar: the same for all of the request's choices.
        at_once: it holds from the first token, so that nothing of the answer is thinking that the
            prompt has opened.
        fields: of each rule made of a field of the request: its name, and the field.
    """

    grammar: Grammar | None = None
    at_once: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> dict[int, str]:
        """Fields by the lines of the grammar that they were made into, counted from 1."""
        if self.grammar is None or not self.fields:
            return {}
        names = (line.partition(":")[0] for line in self.grammar.text.split("\n"))
        return {at: self.fields[name] for at, name in enumerate(names, 1) if name in self.fields}


def text_rules(
    body: GenerationBody, wishes: Wishes, text: ModelText, thinking_open: bool
) -> TextRules:
    """How the answer's tokens become what the client sees.

    `thinking_open`: the answer begins within thinking.
    """
    table = text.tokenizer.table
    reading = Reading(
        thinking=_thinking(body, text),
        thinking_open=thinking_open,
        tools=text.tool_format if wishes.tools else None,
        many_calls=wishes.tools is None or wishes.tools.many,
    )
    hides_special = body.skip_special_tokens is not False
    shown = table.special_ids(_markers(reading) if hides_special else None)
    return TextRules(wishes.stops, shows_stop(body), shown, reading)


def _thinking(body: GenerationBody, text: ModelText) -> ThinkingMarkers | None:
    """The markers to split thinking off by; raw prompts and those who ask for it get one text."""
    if not isinstance(body, ChatBody) or body.separate_reasoning is False:
        return None
    return text.thinking


def _markers(reading: Reading) -> str:
    thinking = reading.thinking
    around = (thinking.opener, thinking.closer) if thinking else ()
    return "\n".join((*around, reading.tools.markers if reading.tools else ""))


def form_of(body: GenerationBody, wishes: Wishes, text: ModelText, thinking_open: bool) -> Form:
    """What the answer is held to.

    Thinking that may come first stays free, unless the client has turned it off. Where a form is
    prescribed and tools may be called, either may come.

    Raises:
        ApiError: 400 for a form that cannot be joined with what else the answer may hold.
    """
    structure, use = wishes.structure, wishes.tools
    if use is not None and (use.prescribed or structure is not None):
        return _after_thinking(_with_calls(use, structure, text), body, text, thinking_open)
    if structure is None:
        return Form()
    if text.thinking is None or structure.kind is GrammarKind.LARK:
        return Form(Grammar(structure.kind, structure.text), at_once=True)
    rules = _Rules(_ANSWER, _answer_rule(structure), {_ANSWER: structure.param})
    return _after_thinking(rules, body, text, thinking_open)


@dataclass(frozen=True)
class _Rules:
    """Rules in Lark, what stands for the whole answer, and the fields that rules were made of."""

    whole: str
    rules: str
    fields: Mapping[str, str]


def _with_calls(use: ToolUse, structure: Structure | None, text: ModelText) -> _Rules:
    """Calls, or else what the structure wants."""
    assert text.tool_format is not None, "checked with the parameters"
    calls = calls_rules(use.schemas, text.tool_format, text.tokenizer.control, use.many)
    fields = schema_rules(use.schemas)
    if structure is None:
        return _Rules("calls", calls, fields)
    rules = f"{calls}\n{_answer_rule(structure)}"
    return _Rules(f"(calls | {_ANSWER})", rules, fields | {_ANSWER: structure.param})


def _answer_rule(structure: Structure) -> str:
    match structure.kind:
        case GrammarKind.JSON_SCHEMA:
            return json_rule(_ANSWER, json.loads(structure.text))
        case GrammarKind.REGEX:
            return regex_rule(_ANSWER, structure.text)
        case GrammarKind.LARK:
            text = f"{structure.param} with a grammar of its own cannot go with tools"
            raise invalid(text, structure.param)


def _after_thinking(
    rules: _Rules, body: GenerationBody, text: ModelText, thinking_open: bool
) -> Form:
    start, thinking = None, text.thinking
    if thinking is not None:
        markers = (thinking.opener, thinking.closer)
        control, free = text.tokenizer.control, _may_think(body)
        start = thinking_then(rules.whole, markers, control, thinking_open, free)
    lark = f"{start or f'start: {rules.whole}'}\n{rules.rules}"
    return Form(Grammar(GrammarKind.LARK, lark), start is None, rules.fields)


def _may_think(body: GenerationBody) -> bool:
    """False if the client has told the template that the model shall not think, and for raw
    prompts, whose answers are one text: thinking in it would be none of the form.
    """
    if not isinstance(body, ChatBody):
        return False
    told = template_variables(body.chat_template_kwargs, body.reasoning_effort)
    return all(told.get(switch) is not False for switch in _THINKING_SWITCHES)
