"""Hands what the engine puts out to everyone who was named, in their order."""

from collections.abc import Callable
from typing import Any


class Fanout:
    """A sink made of sinks; they are named once, before the engine starts."""

    def __init__(self) -> None:
        self._sinks: tuple[Callable[..., Any], ...] = ()

    def to(self, *sinks: Callable[..., Any]) -> None:
        self._sinks = sinks

    def __call__(self, *values: Any) -> None:
        for sink in self._sinks:
            sink(*values)
