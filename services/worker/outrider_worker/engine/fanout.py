"""Hands what the engine puts out to everyone who was named, in their order."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Fanout(Generic[P]):
    """A sink made of sinks; they are named once, before the engine starts."""

    def __init__(self) -> None:
        self._sinks: tuple[Callable[P, None], ...] = ()

    def to(self, *sinks: Callable[P, None]) -> None:
        self._sinks = sinks

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for sink in self._sinks:
            sink(*args, **kwargs)
