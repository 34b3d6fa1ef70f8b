"""A model may write anything for as long as it likes: reading it takes work as its length does.

Work is counted, not timed: the lines that run, and the letters that each search may go through.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from outrider_router.generation import Ending
from outrider_router.openai.chat import ChatWriter
from outrider_router.openai.dialect import Answer, CallIds
from outrider_router.text.message import MessageReader, Reading
from outrider_router.text.parts import CallArguments, CallBegun, Content, Part, joined
from outrider_router.text.reasoning import ThinkingMarkers
from outrider_router.text.stops import StopMatcher
from outrider_router.text.tool_formats import DEEPSEEK_R1, HERMES, LLAMA3, MISTRAL

THINK = ThinkingMarkers("<think>", "</think>")
TOOLS, THOUGHT = Reading(tools=HERMES), Reading(thinking=THINK, tools=HERMES)
ENDLESS: dict[str, tuple[Reading, str, str]] = {
    "a number": (TOOLS, '<tool_call>{"type": 1', "1111"),
    "a number as name": (TOOLS, '<tool_call>{"name": 1', "1111"),
    "a number as arguments": (TOOLS, '<tool_call>{"name": "f", "arguments": 1', "1111"),
    "a name": (TOOLS, '<tool_call>{"name": "f', "abcd"),
    "a key": (TOOLS, '<tool_call>{"', "abcd"),
    "keys": (TOOLS, "<tool_call>{", '"id": 1, '),
    "arguments": (TOOLS, '<tool_call>{"name": "f", "arguments": {"a": "', "abcd"),
    "arguments before the name": (TOOLS, '<tool_call>{"arguments": {"a": "', "ab\\n"),
    "arguments as text": (TOOLS, '<tool_call>{"name": "f", "arguments": "', "abcd"),
    "brackets": (TOOLS, '<tool_call>{"arguments": ', "[{[["),
    "blanks behind a marker": (TOOLS, "<tool_call>", "    "),
    "blanks between calls": (TOOLS, '<tool_call>{"name": "f"}', "    "),
    "calls": (TOOLS, "", '<tool_call>{"name": "f"}</tool_call>'),
    "what is no call": (TOOLS, "", "<tool_call>{x"),
    "half markers": (TOOLS, "", "<tool_"),
    "words": (TOOLS, "", "abcd"),
    "blanks before an object": (Reading(tools=LLAMA3), "", "    "),
    "brackets and commas": (Reading(tools=MISTRAL), "[TOOL_CALLS]", "[ , "),
    "a header": (Reading(tools=MISTRAL), "[TOOL_CALLS]", "abcd"),
    "blanks in a header": (Reading(tools=DEEPSEEK_R1), "<｜tool▁calls▁begin｜>f", "    "),
    "fences": (Reading(tools=DEEPSEEK_R1), "<｜tool▁calls▁begin｜>", "``` "),
    "thoughts": (THOUGHT, "<think>", "abcd"),
    "blank thoughts": (THOUGHT, "<think>x", "\n\n\n\n"),
    "half closers": (THOUGHT, "<think>", " </thi"),
    "blanks before thinking": (THOUGHT, "", "    "),
    "blanks behind thinking": (THOUGHT, "<think>x</think>", "    "),
}


class Work:
    """How much was done."""

    def __init__(self) -> None:
        self.done = 0

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if "outrider_router" not in frame.f_code.co_filename:
            return None
        self.done += event == "line"
        return self._line

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Lines of the router that run within this block count."""
        before = sys.gettrace()
        sys.settrace(self._line)
        try:
            yield
        finally:
            sys.settrace(before)


def grows_as(work_of: Callable[[int], int], pieces: int = 400) -> float:
    """How many times the work twice as much text takes."""
    return work_of(2 * pieces) / work_of(pieces)


@pytest.mark.parametrize("name", ENDLESS)
def test_twice_as_many_pieces_take_twice_the_work(name: str) -> None:
    how, opening, piece = ENDLESS[name]

    def work_of(pieces: int) -> int:
        reader, work = MessageReader(how), Work()
        with work.counted():
            reader.push(opening)
            for _ in range(pieces):
                reader.push(piece)
                work.done += len(reader._source.text)
            reader.finish()
        return work.done

    assert grows_as(work_of) < 3


@pytest.mark.parametrize("piece", ["a", "ab", "x", "\n"])
def test_stops_that_almost_come_take_no_more(piece: str) -> None:
    def work_of(pieces: int) -> int:
        matcher, work = StopMatcher(["a" * 64 + "b", "abab" * 16 + "c", "\n" * 20 + "."]), Work()
        with work.counted():
            for _ in range(pieces):
                matcher.push(piece)
                work.done += len(matcher._held)
        return work.done

    assert grows_as(work_of) < 3


class Counted(str):
    """A text that counts the letters that are copied where it is put together with another."""

    copied = 0

    def __add__(self, other: str) -> "Counted":
        Counted.copied += len(self) + len(other)
        return Counted(str(self) + other)


def test_an_answers_parts_are_put_together_at_once() -> None:
    def work_of(pieces: int) -> int:
        work = Work()
        Counted.copied = 0
        with work.counted():
            (whole,) = joined([Content(Counted("abcd"))] * pieces)
        assert whole == Content("abcd" * pieces)
        return work.done + Counted.copied

    assert grows_as(work_of) < 3


def test_many_calls_of_one_answer_are_written_in_one_walk() -> None:
    def work_of(calls: int) -> int:
        parts: list[Part] = []
        for call in range(calls):
            parts += [CallBegun(call, "f"), CallArguments(call, "{}")]
        work = Work()
        with work.counted():
            whole = ChatWriter().whole(Answer(0, tuple(parts), (), (), Ending("stop")), CallIds())
        written = [call["function"] for call in whole["message"]["tool_calls"]]
        assert written == [{"name": "f", "arguments": "{}"}] * calls
        return work.done

    assert grows_as(work_of, 100) < 3
