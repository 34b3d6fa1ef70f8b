"""Vocabularies of both families; what is refused, in words and in time; what is compiled once."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLParserLimits

from outrider_worker.constrain import (
    CompileLimits,
    GrammarCompiler,
    GrammarRefused,
    GrammarsUnavailable,
    Vocabulary,
)
from outrider_worker.constrain import compiler as compiler_module
from outrider_worker.constrain.source import compile_grammar
from outrider_worker.constrain.vocabulary import allows
from outrider_worker.engine.constraint import ConstraintFailed
from outrider_worker.engine.types import FailureCode, Grammar, GrammarKind
from tests.support.tiny_models import shared_tiny_llama
from tests.support.tiny_tokenizers import byte_level_json, sentencepiece_json
from tests.unit.worker.grammars import (
    NESTED,
    SAMPLE,
    TINY_SIZE,
    allowed,
    begin,
    ids,
    lark,
    regex,
    row_by_row,
    schema,
    tiny,
)


@pytest.mark.parametrize(
    "source", [byte_level_json(), sentencepiece_json(), sentencepiece_json("never")]
)
def test_tokens_of_both_families_and_padding_of_the_vocabulary(
    source: bytes, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(source)
    vocabulary = Vocabulary.load(tmp_path, 500, [2])
    tokenizer = vocabulary.tokenizer
    constraint = begin(schema({"type": "string"}), vocabulary)
    text_ids = tokenizer.tokenize_str('"Größe the café 東 "')
    rows = constraint.masks([*text_ids, 2])
    assert rows.dtype == np.int32
    assert rows.shape == (len(text_ids) + 2, 16)
    assert all(allows(row, t) for row, t in zip(rows, [*text_ids, 2], strict=False))
    known = max(max(allowed(row)) for row in rows)
    assert known < 450, "ids behind the tokenizer's are never allowed"
    specials = {0, 1, 3}
    assert not any(allowed(row) & specials for row in rows)


def test_a_model_that_cannot_be_held_to_grammars_says_why(tmp_path: Path) -> None:
    with pytest.raises(GrammarsUnavailable, match=r"no tokenizer\.json"):
        Vocabulary.load(tmp_path, 300, [2])
    with pytest.raises(GrammarsUnavailable, match="no end-of-sequence"):
        Vocabulary.load(shared_tiny_llama(), TINY_SIZE, [])
    with pytest.raises(GrammarsUnavailable, match="100 vs 259"):
        Vocabulary.load(shared_tiny_llama(), 100, [2])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(GrammarsUnavailable, match="does not fit"):
        Vocabulary.load(tmp_path, 300, [2])


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type":'), "invalid json schema"),
        (schema([]), "object schema"),
        (schema({"type": "objet"}), "objet"),
        (schema({"$ref": "http://x/y"}), "http://x/y"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"enum": []}), "Unsatisfiable"),
        (schema({"type": "string", "pattern": "("}), "unclosed group"),
        (regex("("), "unclosed group"),
        (regex("a(?=b)"), "look-around"),
        (regex("(" * 3000 + ")" * 3000), "invalid regex"),
        (lark("start: foo"), "unknown name"),
        (lark(""), "Empty grammar"),
        (lark("start: A\nA: /a/ & /b/"), "lark cannot be used"),
    ],
)
def test_what_is_invalid_is_refused_in_words(grammar: Grammar, words: str) -> None:
    with pytest.raises(GrammarRefused, match=re.escape(words)) as refused:
        begin(grammar)
    failure = refused.value.failure
    assert (failure.code, failure.param) == (FailureCode.INVALID, "grammar")
    assert len(failure.message) < 500
    assert "non-verbose" not in failure.message


def test_too_complex_on_the_way_ends_the_request_only() -> None:
    scarce = LLParserLimits(max_lexer_states=60, verbose_errors=False)
    grammar = schema({"type": "string", "pattern": "^(foo|ba[rz])+[0-9]{40}$"})
    constraint = compile_grammar(grammar, tiny(), scarce).begin()
    with pytest.raises(ConstraintFailed, match="too many states"):
        constraint.masks(ids('"foobarbaz' + 40 * "7"))


async def test_a_resumed_text_goes_on_where_it_was_and_equal_grammars_compile_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C08, and one compilation for all choices; each has a state of its own."""
    compiled = list[Grammar]()

    def counting(grammar: Grammar, *rest: object) -> object:
        compiled.append(grammar)
        return compile_grammar(grammar, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler_module, "compile_grammar", counting)
    grammars = GrammarCompiler(tiny(), CompileLimits(cached=2))
    wanted = row_by_row(schema(NESTED), ids(SAMPLE))
    cuts = range(0, len(ids(SAMPLE)), 9)
    resumed = await asyncio.gather(
        *(grammars.compile(schema(NESTED), ids(SAMPLE)[:cut]) for cut in cuts)
    )
    for cut, constraint in zip(cuts, resumed, strict=True):
        assert np.array_equal(constraint.masks(ids(SAMPLE)[cut:]), wanted[cut:])
    assert compiled == [schema(NESTED)]
    for _ in range(2):
        with pytest.raises(GrammarRefused):
            await grammars.compile(regex("("))
    assert len(compiled) == 2, "a bad one is remembered too"
    await grammars.compile(regex("a"))
    await grammars.compile(schema(NESTED))
    assert len(compiled) == 4, "the longest unused one was forgotten"
    with pytest.raises(GrammarRefused, match="resumed ids break the grammar"):
        await grammars.compile(schema(NESTED), ids("[1"))
    grammars.close()


async def test_a_grammar_has_one_limit_in_bytes() -> None:
    grammars = GrammarCompiler(tiny())
    with pytest.raises(GrammarRefused, match="longer than 65536 bytes") as refused:
        await grammars.compile(regex("é" * 32_769))
    assert (refused.value.failure.code, refused.value.failure.param) == (
        FailureCode.INVALID,
        "grammar",
    )
    grammars.close()


async def test_too_long_too_slow_and_too_many_are_refused_in_time() -> None:
    tight = CompileLimits(text_bytes=300_000, wait_s=0.05, waiting=3, threads=1)
    grammars = GrammarCompiler(tiny(), tight)
    with pytest.raises(GrammarRefused, match="longer than 300000 bytes"):
        await grammars.compile(regex("ü" * 150_001))
    slow = schema({"properties": {f"p{number}": {} for number in range(2_500)}})
    outcomes = await asyncio.wait_for(
        asyncio.gather(
            *(grammars.compile(slow) for _ in range(4)),
            return_exceptions=True,
        ),
        timeout=5,
    )
    failures = [each.failure for each in outcomes if isinstance(each, GrammarRefused)]
    codes = [failure.code for failure in failures]
    assert codes.count(FailureCode.OVERLOADED) == 1
    assert codes.count(FailureCode.INVALID) == 3
    assert any("did not compile in 0.05 s" in failure.message for failure in failures)
    grammars.close()
