"""Grammars whose text spells a control token: it is spelled by ordinary tokens, to the end."""

import json
import random
import re
from pathlib import Path

import pytest

from outrider_worker.constrain import Vocabulary
from outrider_worker.constrain.source import compile_grammar, parser_limits
from outrider_worker.engine.types import Grammar
from tests.support.tiny_tokenizers import (
    MARKERS,
    SPECIAL_TOKENS,
    byte_level_json,
    sentencepiece_json,
)
from tests.unit.worker.grammars import allowed, lark, regex, schema

SIZE, END_ID = 500, 2


def forms(text: str) -> dict[str, tuple[Grammar, str]]:
    """Grammars that leave one text, and that text."""
    named = {
        "type": "object",
        "properties": {text: {"type": "null"}},
        "required": [text],
        "additionalProperties": False,
    }
    return {
        "regex": (regex(re.escape(text).replace("/", r"\/")), text),
        "const": (schema({"const": text}), json.dumps(text)),
        "name": (schema(named), json.dumps({text: None})),
        "lark": (lark(f"start: {json.dumps(text)}"), text),
    }


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def vocabulary(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Vocabulary:
    folder: Path = tmp_path_factory.mktemp(request.param)
    source = byte_level_json() if request.param == "byte_level" else sentencepiece_json()
    (folder / "tokenizer.json").write_bytes(source)
    return Vocabulary.load(folder, SIZE, [END_ID])


@pytest.mark.parametrize("token", [*SPECIAL_TOKENS, *MARKERS])
@pytest.mark.parametrize("form", ["regex", "const", "name", "lark"])
def test_whatever_the_mask_allows_can_be_committed(
    vocabulary: Vocabulary, form: str, token: str
) -> None:
    """A client's text must not bring the engine down, nor make a control token of the answer."""
    grammar, text = forms(f"a{token}b")[form]
    chance = random.Random(token)
    constraint = compile_grammar(grammar, vocabulary, parser_limits()).begin()
    said: list[int] = []
    while not constraint.finished:
        some = allowed(constraint.masks([])[0])
        assert not any(map(vocabulary.tokenizer.is_special_token, some - {END_ID}))
        said.append(chance.choice(sorted(some)))
        constraint.advance([said[-1]])
    spoken = vocabulary.tokenizer.decode_bytes([one for one in said if one != END_ID]).decode()
    assert re.sub(r"\s", "", spoken) == re.sub(r"\s", "", text)


def test_texts_are_spelled_as_the_tokenizer_would(vocabulary: Vocabulary) -> None:
    """Where one text is left, its usual tokens are, not any that happen to spell it."""
    text = "the quick brown fox"
    constraint = compile_grammar(regex(text), vocabulary, parser_limits()).begin()
    usual = vocabulary.tokenizer.tokenize_str(text)
    for token_id in usual:
        assert token_id in allowed(constraint.masks([])[0])
        constraint.advance([token_id])
    assert constraint.finished
