"""Grammars of the tests, the tiny byte-level vocabulary, and masks in a form that can be read."""

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outrider_worker.constrain import Vocabulary
from outrider_worker.constrain.matching import GrammarConstraint
from outrider_worker.constrain.source import compile_grammar, parser_limits
from outrider_worker.constrain.vocabulary import allows
from outrider_worker.engine.types import Grammar, GrammarKind
from tests.support.tiny_models import shared_tiny_llama

END_IDS = (2, 0)
TINY_SIZE = 259
COLOURS = {"enum": ["red", "dark red", None]}
NESTED = {
    "type": "object",
    "properties": {
        "colour": COLOURS,
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "on": {"type": "boolean"}},
            "required": ["x", "on"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
    },
    "required": ["colour", "at", "tags"],
    "additionalProperties": False,
}
SAMPLE = '{"colour": "dark red", "at": {"x": -12, "on": true}, "tags": ["ä", "b\\n"]}'


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


@cache
def tiny() -> Vocabulary:
    return Vocabulary.load(shared_tiny_llama(), TINY_SIZE, END_IDS)


def begin(grammar: Grammar, vocabulary: Vocabulary | None = None) -> GrammarConstraint:
    return compile_grammar(grammar, vocabulary or tiny(), parser_limits()).begin()


def ids(text: str) -> list[int]:
    return list(tiny().tokenizer.tokenize_str(text))


def text_of(token_ids: Sequence[int]) -> str:
    kept = [token_id for token_id in token_ids if token_id not in END_IDS]
    return bytes(tiny().tokenizer.decode_bytes(kept)).decode()


def allowed(row: NDArray[np.int32]) -> set[int]:
    return {token_id for token_id in range(32 * len(row)) if allows(row, token_id)}


def row_by_row(grammar: Grammar, token_ids: Sequence[int]) -> NDArray[np.int32]:
    """The masks before each token and behind the last, every step committed."""
    constraint = begin(grammar)
    rows = [constraint.masks(())]
    for token_id in token_ids:
        constraint.advance([token_id])
        rows.append(constraint.masks(()))
    return np.concatenate(rows)
