"""From what a request wants of its answer to how it is held to it and how its text is read.

Joins tools, prescribed forms and the model's thinking, which only together give one grammar.
"""

from outrider_router.openai.errors import invalid
from outrider_router.openai.params import Wishes, shows_stop
from outrider_router.openai.schema import ChatBody, GenerationBody
from outrider_router.text.assemble import TextRules
from outrider_router.text.message import Reading
from outrider_router.text.model_text import ModelText
from outrider_router.text.reasoning import ThinkingMarkers
from outrider_router.text.tool_grammar import calls_rules, json_rule, regex_rule, thinking_then
from outrider_router.types import Grammar, GrammarKind

_ANSWER = "answer"


def text_rules(
    body: GenerationBody, wishes: Wishes, text: ModelText, thinking_open: bool
) -> TextRules:
    """How the answer's tokens become what the client sees."""
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


def grammar_of(wishes: Wishes, text: ModelText, thinking_open: bool) -> Grammar | None:
    """What the answer is held to.

    Thinking that may come first stays free. Where a form is prescribed and tools may be called,
    either may come.

    Raises:
        ApiError: 400 for a form that cannot be joined with what else the answer may hold.
    """
    structure, use = wishes.structure, wishes.tools
    if use is not None and (use.prescribed or structure is not None):
        assert text.tool_format is not None, "checked with the parameters"
        control = text.tokenizer.control
        rules = calls_rules(use.schemas, text.tool_format, control, use.many)
        if structure is None:
            return _after_thinking("calls", rules, text, thinking_open)
        body = f"(calls | {_ANSWER})"
        return _after_thinking(body, f"{rules}\n{_answer_rule(wishes)}", text, thinking_open)
    if structure is None:
        return None
    if text.thinking is None or structure.kind is GrammarKind.LARK:
        return Grammar(structure.kind, structure.text)
    return _after_thinking(_ANSWER, _answer_rule(wishes), text, thinking_open)


def _answer_rule(wishes: Wishes) -> str:
    structure = wishes.structure
    assert structure is not None
    match structure.kind:
        case GrammarKind.JSON_SCHEMA:
            return json_rule(_ANSWER, structure.text)
        case GrammarKind.REGEX:
            return regex_rule(_ANSWER, structure.text)
        case GrammarKind.LARK:
            text = f"{structure.param} with a grammar of its own cannot go with tools"
            raise invalid(text, structure.param)


def _after_thinking(body: str, rules: str, text: ModelText, thinking_open: bool) -> Grammar:
    thinking = text.thinking
    start = None
    if thinking is not None:
        markers = (thinking.opener, thinking.closer)
        start = thinking_then(body, markers, thinking_open, text.tokenizer.control)
    return Grammar(GrammarKind.LARK, f"{start or f'start: {body}'}\n{rules}")
