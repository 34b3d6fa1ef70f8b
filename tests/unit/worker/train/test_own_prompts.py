"""Prompts that the target writes itself: what is asked of it, what is kept, and going on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from outrider_worker.engine.types import SamplingParams
from outrider_worker.train.answers import Answer, Question
from outrider_worker.train.kinds import KINDS
from outrider_worker.train.own_prompts import (
    OWN,
    Frame,
    OwnPromptsError,
    OwnPromptsPlan,
    is_prompt,
    own_prompts,
)
from outrider_worker.train.pace import paced
from outrider_worker.train.prompts import HELD_OUT_ONE_IN, is_held_out
from tests.support.tiny_training import TinyChat, respondent

_END = 3 + ord("]")


class _Framed(TinyChat):
    """Every message between brackets."""

    def encode(self, message: str) -> list[int]:
        return super().encode(f"user [{message}] bot ")


class _Author:
    """Goes on with whatever `write` gives for an attempt's seed; the last first, as it may be."""

    def __init__(self, write: dict[int, str] | None = None) -> None:
        self.asked, self._write = list[Question](), write or {}

    def answer(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for number, question in reversed(list(enumerate(questions))):
            self.asked.append(question)
            seed = question.sampling.seed
            said = TinyChat().encode(self._write.get(seed, f"what is item {seed} made of]"))
            yield Answer(number, (*question.prompt_ids, *said), torch.empty(0))


def _texts(folder: Path, author: _Author, count: int, seed: int = 0) -> list[str]:
    plan, said = OwnPromptsPlan(count, seed=seed), list[str]()
    found = own_prompts(folder / "own.json", "tiny", author, _Framed(), plan, said.append)
    assert all(prompt.family == OWN for prompt in found)
    assert [p.held_out for p in found] == [is_held_out(p.text, HELD_OUT_ONE_IN) for p in found]
    return [prompt.text for prompt in found]


def test_the_target_is_given_what_stands_before_a_message_and_stops_where_one_ends(
    tmp_path: Path,
) -> None:
    author = _Author()
    assert len(_texts(tmp_path, author, 3)) == 3
    assert {question.prompt_ids for question in author.asked} == {
        tuple(TinyChat().encode("user ["))
    }
    assert {q.sampling.stop_token_ids for q in author.asked} == {frozenset({_END})}
    assert len({question.sampling.seed for question in author.asked}) == len(author.asked) == 256
    assert Frame.of(_Framed().encode).end_id == _END
    with pytest.raises(OwnPromptsError, match="frames no message"):
        Frame.of(TinyChat().encode)


def test_what_is_no_prompt_is_dropped_and_the_rest_is_different(tmp_path: Path) -> None:
    first = 500_000
    author = _Author(
        {
            first: "an unfinished question that was cut where it was too lo",
            first + 1: "hm]",
            first + 2: "and again and again and again and again and again and again]",
            first + 3: "  Why is the sky blue?\n]",
            first + 4: "why is the sky BLUE?]",
        }
    )
    found = _texts(tmp_path, author, 3)
    assert found == [
        "Why is the sky blue?",
        f"what is item {first + 5} made of",
        f"what is item {first + 6} made of",
    ]


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("How do tides work?", True),
        ("one two", False),
        ("what is \ufffd here", False),
        ("say <|im_start|> to me", False),
        ("the cat sat, and the cat sat, and a dog came by at noon", True),
        ("no no no no no no no no", False),
    ],
)
def test_a_prompt_is_words_and_no_running_in_circles(text: str, good: bool) -> None:
    assert is_prompt(text) is good


def test_writing_goes_on_where_it_was_and_only_with_the_same_plan(tmp_path: Path) -> None:
    whole = _texts(tmp_path / "whole", _Author(), 400)
    few, more, none = _Author(), _Author(), _Author()
    assert _texts(tmp_path / "cut", few, 100) == whole[:100]
    assert _texts(tmp_path / "cut", more, 400) == whole
    assert _texts(tmp_path / "cut", none, 400) == whole
    assert [len(author.asked) for author in (few, more, none)] == [256, 256, 0]
    with pytest.raises(OwnPromptsError, match="of another run"):
        _texts(tmp_path / "cut", _Author(), 40, seed=1)
    (tmp_path / "cut" / "own.json").write_text("{")
    with pytest.raises(OwnPromptsError, match="cannot be read"):
        _texts(tmp_path / "cut", _Author(), 40)


def test_nobody_waits_in_silence(tmp_path: Path) -> None:
    said, plan = list[str](), OwnPromptsPlan(3)
    own_prompts(tmp_path / "own.json", "tiny", _Author(), _Framed(), plan, said.append)
    assert said[0] == "prompts of its own: 0 of 3, 256 more are attempted"
    assert said[-1] == "prompts of its own: 3 of 3"


def test_a_pace_lets_a_line_through_now_and_then() -> None:
    said, now_s = list[str](), 0.0
    say = paced(said.append, 10.0, lambda: now_s)
    for now_s in (1.0, 9.0, 11.0, 12.0, 20.0, 21.0):
        say(f"at {now_s:.0f}")
    assert said == ["at 11", "at 21"]


def test_a_target_that_knows_no_chats_is_not_asked_for_ever(tmp_path: Path) -> None:
    writer = respondent(KINDS["mtp-eagle"], seats=32)
    plan = OwnPromptsPlan(8, prompt_tokens=4)
    with pytest.raises(OwnPromptsError, match="it knows no chats"):
        own_prompts(tmp_path / "own.json", "tiny", writer, _Forgiving(), plan)


class _Forgiving(_Framed):
    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def test_an_answer_ends_with_a_stop_token() -> None:
    """Whichever token a text holds can end it."""
    writer, prompt = respondent(KINDS["mtp-eagle"]), tuple(TinyChat().encode("say"))
    (free,) = writer.answer([Question(prompt, SamplingParams(max_tokens=12))])
    third = free.token_ids[len(prompt) + 2]
    params = SamplingParams(max_tokens=12, stop_token_ids=frozenset({third}))
    (stopped,) = writer.answer([Question(prompt, params)])
    end = free.token_ids.index(third, len(prompt)) + 1
    assert stopped.token_ids == free.token_ids[:end]
