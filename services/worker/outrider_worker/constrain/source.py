"""From a client's grammar text to a matcher at its start; everything the text can be wrong in.

Runs on any thread: the library lets other threads run while it compiles. Nothing here can be
stopped half-way, so that the library's own limits must bound it: fuel for the lexer, symbols in
the grammar.
"""

import re

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

from outrider_worker.constrain.matching import CompiledGrammar
from outrider_worker.constrain.position import Position, error_text
from outrider_worker.constrain.vocabulary import Vocabulary, allows
from outrider_worker.engine.constraint import ConstraintFailed
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Grammar,
    GrammarKind,
    RequestRefused,
)

# Between JSON's tokens. Without an upper bound a model that is not sure what comes next writes
# blanks until its tokens are used up.
_JSON_BLANKS = r"[\x20\x0A\x0D\x09]{1,64}"
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


class GrammarRefused(RequestRefused):
    """A grammar that no request can be held to; its client is told why."""

    def __init__(self, message: str, code: FailureCode = FailureCode.INVALID) -> None:
        super().__init__(Failure(code, message, "grammar"))


def parser_limits() -> LLParserLimits:
    """What one grammar may cost: ~20 ms of lexer building, ~15 ms for a mask, ~100 MB of states."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def compile_grammar(
    grammar: Grammar, vocabulary: Vocabulary, limits: LLParserLimits
) -> CompiledGrammar:
    """Compile, and try the first mask: a grammar that allows no first token is refused here.

    Raises:
        GrammarRefused: with a message for its author.
    """
    name = grammar.kind.value.replace("_", " ")
    try:
        source = _library_source(grammar)
    except ValueError as error:
        raise GrammarRefused(f"invalid {name}: {error}") from error
    start = LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=limits)
    if start.is_error():
        raise GrammarRefused(f"invalid {name}: {error_text(start)}")
    try:
        return CompiledGrammar(start, vocabulary, _rewinds(start, vocabulary))
    except ConstraintFailed as error:
        raise GrammarRefused(f"{name} cannot be used: {error}") from error


def _library_source(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(
                grammar.text, defaults={"whitespace_pattern": _JSON_BLANKS}
            )
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(_as_lark(grammar.text))


def _as_lark(text: str) -> str:
    """GBNF, which other servers' clients write, turned into Lark; Lark as it is.

    Raises:
        ValueError: looks like GBNF and is none.
    """
    if not _GBNF_RULE.search(text):
        return text
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the converter raises whatever happens to it on the way
        raise ValueError(f"GBNF cannot be read: {error}") from error


def _rewinds(start: LLMatcher, vocabulary: Vocabulary) -> bool:
    """Whether a step can be taken back, tried with a copy and the first token that may come.

    The mask is asked of `start` itself: each copy inherits what the lexer learns from it.
    """
    row = vocabulary.blank_rows(1)
    Position(start, vocabulary).fill(row, 0)
    texts = (token_id for token_id in range(vocabulary.size) if token_id not in vocabulary.end_ids)
    first = next((token_id for token_id in texts if allows(row[0], token_id)), None)
    if first is None:
        return True
    trial = start.deep_copy()
    return trial.consume_token(first) and trial.rollback(1)
