"""Prompts that the target writes itself, which reach wider than any templates.

A chat model that is given what its template puts before a user's message, and nothing more, goes on
with such a message as it was taught on (Magpie, Xu et al. 2024, arXiv 2406.08464, section 2.1).
Attempt number n is a function of the plan and n alone, and all attempts lie in one file, so writing
can be cut anywhere and taken up again.

Knows: the frame around a message, what makes an attempt a prompt. Does not know: who answers them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from outrider_worker.engine.types import SamplingParams
from outrider_worker.train.answers import Answer, Question
from outrider_worker.train.files import whole_file
from outrider_worker.train.pace import Say, paced
from outrider_worker.train.prompts import HELD_OUT_ONE_IN, Prompt, is_held_out

OWN = "own"
"""The family of these prompts."""

_AT_ONCE = 256
"""Attempts between two writes of the file: seats are empty at the end of each"""
_FEWEST_OF_PORTION = 16
"""With fewer usable ones among so many attempts the target is no chat model."""
_FEWEST_WORDS, _LEAST_DISTINCT = 3, 0.7


class OwnPromptsError(Exception):
    """The target cannot be had to write prompts, or the file holds another run's."""


class Chat(Protocol):
    """The target's text side, as it is served."""

    def encode(self, message: str) -> Sequence[int]:
        """A user's message → ids of the whole prompt, through the chat template."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Ids → text, control tokens shown."""
        ...


class Writer(Protocol):
    """Who goes on with texts (an answers.Respondent)."""

    def answer(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """Whole texts as they are finished."""
        ...


@dataclass(frozen=True)
class OwnPromptsPlan:
    """How many prompts are to be written, and how."""

    count: int = 0
    prompt_tokens: int = 96
    """Longer attempts are dropped."""
    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0

    def sampling(self, attempt: int, end_id: int) -> SamplingParams:
        """Of the attempt with this number; `end_id` ends a user's turn."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed * 1_000_003 + 500_000 + attempt,  # apart from the answers' seeds
            max_tokens=self.prompt_tokens,
            stop_token_ids=frozenset({end_id}),
        )


@dataclass(frozen=True)
class Frame:
    """What the template puts around a user's message."""

    opening: tuple[int, ...]
    end_id: int
    """The first token behind the message"""

    @classmethod
    def of(cls, encode: Callable[[str], Sequence[int]]) -> Frame:
        """What two messages without a common token have in common.

        Raises OwnPromptsError where nothing stands before a message or behind it.
        """
        one, other = encode("A"), encode("7")
        opening, closing = _common(one, other), _common(one[::-1], other[::-1])
        if not opening or not closing:
            raise OwnPromptsError(
                "the target's chat template frames no message: it cannot write prompts of its own"
            )
        return cls(tuple(opening), closing[-1])


def own_prompts(
    file: Path,
    target: str,
    writer: Writer,
    chat: Chat,
    plan: OwnPromptsPlan,
    say: Say = lambda line: None,
) -> list[Prompt]:
    """`plan.count` different prompts, as many as are missing written now.

    target: digest of its files. Raises OwnPromptsError.
    """
    if not plan.count:
        return []
    made_from = {"target": target, **asdict(plan)}
    del made_from["count"]  # an attempt does not depend on how many there are
    attempts = _read(file, made_from)
    frame, seldom = Frame.of(chat.encode), paced(say)
    while len(texts := _different(attempts)) < plan.count:
        numbers = range(len(attempts), len(attempts) + _AT_ONCE)
        say(f"prompts of its own: {len(texts)} of {plan.count}, {_AT_ONCE} more are attempted")
        attempts += _attempted(numbers, writer, chat, frame, plan, seldom)
        _write(file, {"made_from": made_from, "attempts": attempts})
        found = len(_different(attempts))
        if found < len(texts) + _FEWEST_OF_PORTION:
            raise OwnPromptsError(
                f"of {_AT_ONCE} prompts that the target was to write {found - len(texts)} can be "
                "used: it knows no chats, train it without prompts of its own"
            )
    say(f"prompts of its own: {plan.count} of {plan.count}")
    return [Prompt(OWN, text, is_held_out(text, HELD_OUT_ONE_IN)) for text in texts[: plan.count]]


def is_prompt(text: str) -> bool:
    """Whether it may have been meant: words, whole characters, no tokens of control, no circles."""
    words = text.lower().split()
    threes = list(zip(words, words[1:], words[2:], strict=False))
    if len(words) < _FEWEST_WORDS or "\ufffd" in text or "<|" in text:
        return False
    return len(set(threes)) >= _LEAST_DISTINCT * len(threes)


def _attempted(
    numbers: Sequence[int],
    writer: Writer,
    chat: Chat,
    frame: Frame,
    plan: OwnPromptsPlan,
    say: Say,
) -> list[str]:
    """A text of each number, in order; empty where none came of it."""
    asked = [Question(frame.opening, plan.sampling(n, frame.end_id)) for n in numbers]
    written = list[Answer]()
    for answer in writer.answer(asked):
        written.append(answer)
        say(f"  {len(written)} of {len(asked)} attempts")
    written.sort(key=lambda answer: answer.number)
    return [_message(answer.token_ids[len(frame.opening) :], chat, frame) for answer in written]


def _message(token_ids: Sequence[int], chat: Chat, frame: Frame) -> str:
    """What was written as a user's message; empty if it is none."""
    text = chat.decode(token_ids[:-1]).strip()
    return text if token_ids[-1] == frame.end_id and is_prompt(text) else ""


def _different(attempts: Sequence[str]) -> list[str]:
    """The usable ones, each once, whatever its letters' case."""
    first = dict[str, str]()
    for text in filter(None, attempts):
        first.setdefault(text.casefold(), text)
    return list(first.values())


def _common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """What both begin with."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [token for token, _ in pairs]


def _read(file: Path, made_from: dict[str, object]) -> list[str]:
    """The attempts so far."""
    if not file.is_file():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        attempts = [str(text) for text in found["attempts"]]
        known = found["made_from"]
    except (ValueError, KeyError, TypeError) as error:
        raise OwnPromptsError(f"{file} cannot be read: {error}") from error
    if known != made_from:
        raise OwnPromptsError(f"{file} holds the prompts of another run: remove it to begin anew")
    return attempts


def _write(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as beside:
        beside.write_text(json.dumps(value, indent=1), encoding="utf-8")
