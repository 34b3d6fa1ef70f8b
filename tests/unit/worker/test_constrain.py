"""Masks along drafts: what they allow, how they are taken back, where a text ends (C01, C02)."""

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_worker.constrain.source import GrammarRefused, compile_grammar, parser_limits
from outrider_worker.constrain.vocabulary import allows
from outrider_worker.engine.constraint import ConstraintFailed, ConstraintViolated
from outrider_worker.engine.types import Grammar
from tests.unit.worker.grammars import (
    COLOURS,
    END_IDS,
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
    text_of,
    tiny,
)


def generate(grammar: Grammar, seed: int, drafter: "ScriptedDrafter | None" = None) -> list[int]:
    """Greedy text of random logits fixed by (seed, index), with the masks' help alone."""
    constraint, emitted = begin(grammar), list[int]()
    while not (emitted and emitted[-1] in END_IDS):
        assert len(emitted) < 4000, "no end"
        drafts = drafter.propose(len(emitted)) if drafter else []
        rows = constraint.masks(drafts)
        run = list[int]()
        for row, draft in zip(rows, [*drafts, -1], strict=True):
            logits = np.random.default_rng((seed, len(emitted) + len(run))).random(TINY_SIZE)
            run.append(max(allowed(row), key=lambda token_id: logits[token_id]))
            if run[-1] != draft or draft in END_IDS:
                break
        constraint.advance(run)
        emitted += run
    assert constraint.finished
    return emitted


class ScriptedDrafter:
    """Knows the text, and spoils one of every `depth` drafts, at an offset that goes round."""

    def __init__(self, text_ids: Sequence[int], depth: int, offset: int, wrong_id: int) -> None:
        self._ids, self._depth, self._offset, self._wrong_id = text_ids, depth, offset, wrong_id

    def propose(self, emitted: int) -> list[int]:
        drafts = list(self._ids[emitted : emitted + self._depth])
        if self._offset < len(drafts):
            drafts[self._offset] = self._wrong_id
        return drafts


def check_nested(text: str) -> None:
    value = json.loads(text)
    assert value["colour"] in COLOURS["enum"]
    assert isinstance(value["at"]["x"], int)
    assert isinstance(value["at"]["on"], bool)
    assert len(value["tags"]) <= 3
    assert all(len(tag) <= 9 for tag in value["tags"])
    assert set(value) == {"colour", "at", "tags"}
    assert set(value["at"]) == {"x", "on"}


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(-1, 300))
def test_a_random_model_writes_valid_json_with_and_without_drafts(
    seed: int, offset: int, wrong_id: int
) -> None:
    """C01: whatever is drafted, the text is valid and equals the one written without drafts."""
    plain = generate(schema(NESTED), seed)
    check_nested(text_of(plain))
    drafter = ScriptedDrafter(plain, depth=5, offset=offset, wrong_id=wrong_id)
    assert generate(schema(NESTED), seed, drafter) == plain


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_random_model_stays_within_regex_and_lark(seed: int) -> None:
    pattern = r"(ab|c){2,4}-[0-9]{1,3}(é|ü)?"
    assert re.fullmatch(pattern, text_of(generate(regex(pattern), seed)))
    sums = 'start: term ("+" term){0,3}\nterm: /[1-9]/ | "(" start ")"'
    text = text_of(generate(lark(sums), seed))
    assert eval(text) >= 1


def test_gbnf_is_read_as_what_it_means() -> None:
    text = text_of(generate(lark('root ::= "a" [0-9]{2} | thing\nthing ::= "bc"'), 3))
    assert re.fullmatch(r"a\d\d|bc", text)
    with pytest.raises(GrammarRefused, match="GBNF cannot be read"):
        begin(lark('root ::= "a" ('))


@pytest.mark.parametrize("grammar", [schema(NESTED), schema({}), lark("start: /(.|\\n)*/")])
def test_rows_along_drafts_equal_masks_step_by_step_and_nothing_is_left_behind(
    grammar: Grammar,
) -> None:
    text_ids = [*ids(SAMPLE), *END_IDS, 0]
    wanted = row_by_row(grammar, text_ids)
    constraint = begin(grammar)
    for at in range(len(text_ids) + 1):
        for drafted in (0, 1, 3, 7):
            drafts = text_ids[at : at + drafted]
            assert np.array_equal(constraint.masks(drafts), wanted[at : at + 1 + len(drafts)])
            assert np.array_equal(constraint.masks(()), wanted[at : at + 1])
        constraint.advance(text_ids[at : at + 1])


def test_a_forbidden_draft_ends_the_walk_at_every_offset() -> None:
    text_ids = ids(SAMPLE)[:8]
    wanted = row_by_row(schema(NESTED), text_ids)
    for offset in range(len(text_ids)):
        for wrong_id in (ids("~")[0], END_IDS[0], -1, TINY_SIZE, 10**6):
            constraint = begin(schema(NESTED))
            drafts = [*text_ids[:offset], wrong_id, *text_ids[offset + 1 :]]
            rows = constraint.masks(drafts)
            assert np.array_equal(rows[: offset + 1], wanted[: offset + 1])
            assert (rows[offset + 1 :] == -1).all()
            assert not allows(rows[offset], wrong_id)
            assert np.array_equal(constraint.masks(()), wanted[:1])
            constraint.advance(text_ids)


def test_end_ids_are_allowed_exactly_where_the_text_may_stop() -> None:
    rows = row_by_row(regex("[0-9]{2,3}"), [*ids("123"), 2, 0, 2])
    digits = set(ids("0123456789"))
    ends = set(END_IDS)
    assert [allowed(row) for row in rows] == [
        digits,
        digits,
        digits | ends,
        ends,
        *[ends] * 3,
    ]


def test_finished_when_nothing_but_an_end_can_follow() -> None:
    closed, open_ended = begin(regex("ab")), begin(regex("ab*"))
    for constraint in (closed, open_ended):
        assert not constraint.finished
        constraint.advance(ids("ab"))
    assert closed.finished
    assert not open_ended.finished
    open_ended.advance([2])
    assert open_ended.finished


@pytest.mark.parametrize("token_id", [65, -1, TINY_SIZE, 2])
def test_committing_what_is_forbidden_is_a_fault(token_id: int) -> None:
    constraint = begin(schema(NESTED))
    constraint.advance(ids('{"'))
    with pytest.raises(ConstraintViolated, match=str(token_id)):
        constraint.advance([token_id])


def test_text_behind_the_end_is_a_fault() -> None:
    constraint = begin(regex("a*"))
    constraint.advance([*ids("a"), 2])
    with pytest.raises(ConstraintViolated):
        constraint.advance(ids("a"))


@pytest.mark.parametrize(
    ("free", "rewinds"),
    [('free[suffix="##"]: /(.|\\n)*/', True), ('free[stop="##"]: /(.|\\n)*/', False)],
)
def test_the_marker_that_ends_the_free_part_lies_at_every_place_of_a_run(
    free: str, rewinds: bool
) -> None:
    """C02: the row behind the marker is the grammar's first, also in the run that holds it."""
    grammar = lark(f'start: free json\n{free}\njson: %json {{"type": "boolean"}}')
    compiled = compile_grammar(grammar, tiny(), parser_limits())
    assert compiled.rewinds is rewinds
    text_ids = ids("so # it is##true")
    marker_end = len(ids("so # it is##"))
    for start in range(marker_end):
        constraint = compiled.begin()
        constraint.advance(text_ids[:start])
        rows = constraint.masks(text_ids[start:])
        blanks_or_value = allowed(rows[marker_end - start])
        assert set(ids("tf")) <= blanks_or_value <= set(ids("tf \n\r\t"))
        assert len(allowed(rows[marker_end - start - 1])) > 100
        constraint.advance([*text_ids[start:], 2])


def test_an_end_token_in_the_middle_of_a_grammar_ends_the_request() -> None:
    """It would end the answer there; that is told, not passed off as the whole text."""
    constraint = begin(lark('start: "a" <|im_end|> "b"'))
    constraint.advance(ids("a"))
    with pytest.raises(ConstraintFailed, match="no token of this model"):
        constraint.masks(())


def test_blanks_between_json_tokens_run_out() -> None:
    """A model that cannot decide would write them until its tokens are used up."""
    constraint = begin(schema({"type": "array"}))
    constraint.advance(ids("[" + 64 * " "))
    assert not allowed(constraint.masks(())[0]) & set(ids(" \n\t\r"))
