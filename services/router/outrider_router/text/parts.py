"""What an answer is made of, once its text has been read: content, reasoning, tool calls."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text the model wrote for itself."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A tool call; its arguments follow. `call` counts the message's calls from 0."""

    call: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    call: int
    text: str


Part = Content | Reasoning | CallBegun | CallArguments


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same parts with neighbours of one kind as one, and none without text."""
    result: list[Part] = []
    for part in parts:
        if not isinstance(part, CallBegun) and not part.text:
            continue
        together = _together(result[-1], part) if result else None
        if together is None:
            result.append(part)
        else:
            result[-1] = together
    return tuple(result)


def content_of(parts: Iterable[Part]) -> str:
    """The text for the user."""
    return "".join(part.text for part in parts if isinstance(part, Content))


def _together(first: Part, second: Part) -> Part | None:
    match first, second:
        case Content(a), Content(b):
            return Content(a + b)
        case Reasoning(a), Reasoning(b):
            return Reasoning(a + b)
        case CallArguments(call, a), CallArguments(same, b) if call == same:
            return CallArguments(call, a + b)
        case _:
            return None
