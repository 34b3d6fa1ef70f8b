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
    runs: list[list[Part]] = []
    for part in parts:
        if not isinstance(part, CallBegun) and not part.text:
            continue
        if runs and _belong_together(runs[-1][0], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return tuple(map(_as_one, runs))


def content_of(parts: Iterable[Part]) -> str:
    """The text for the user."""
    return "".join(part.text for part in parts if isinstance(part, Content))


def _belong_together(first: Part, second: Part) -> bool:
    if type(first) is not type(second) or isinstance(first, CallBegun):
        return False
    if isinstance(first, CallArguments) and isinstance(second, CallArguments):
        return first.call == second.call
    return True


def _as_one(run: list[Part]) -> Part:
    """Joined in one step: one after the other, a long text would be copied for each."""
    first = run[0]
    if len(run) == 1 or isinstance(first, CallBegun):
        return first
    text = "".join(part.text for part in run if not isinstance(part, CallBegun))
    if isinstance(first, CallArguments):
        return CallArguments(first.call, text)
    return type(first)(text)
