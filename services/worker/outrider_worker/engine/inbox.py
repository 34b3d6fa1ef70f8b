"""The one door through which outside state enters the engine, drained once per round."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from outrider_worker.engine.constraint import Constraint
from outrider_worker.engine.types import RequestKey, RequestSpec


@dataclass(frozen=True, slots=True)
class Submit:
    """A request; with a grammar comes its constraint, which stands behind the resumed ids."""

    spec: RequestSpec
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends one choice of a request, or all of them when `choice_index` is None."""

    owner: str
    request_id: str
    choice_index: int | None = None


@dataclass(frozen=True, slots=True)
class DropOwner:
    """A router's stream is gone: nobody wants its requests any more."""

    owner: str


@dataclass(frozen=True, slots=True)
class EndAll:
    """End what still runs with an error that says so (the drain limit is over)."""

    message: str


Command = Submit | Cancel | DropOwner | EndAll


class Inbox:
    """Commands from any thread, in order of arrival.

    While a round lasts, requests may come and go; what went again is taken out, so that no more is
    kept than is wanted, however long the round.
    """

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self._woken = False
        self._changed = threading.Condition()

    def put(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def withdraw(self, is_meant: Callable[[RequestKey], bool]) -> list[RequestKey]:
        """Take out the requests of these keys that have not entered the engine yet."""
        with self._changed:
            kept, keys = [], []
            for command in self._commands:
                if isinstance(command, Submit) and is_meant(command.spec.key):
                    keys.append(command.spec.key)
                else:
                    kept.append(command)
            self._commands = kept
        return keys

    @property
    def empty(self) -> bool:
        return not self._commands

    def wake(self) -> None:
        """End a wait without a command."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def drain(self, wait_s: float = 0.0) -> list[Command]:
        """Everything that has come in; waits for the first at most `wait_s`."""
        with self._changed:
            if wait_s > 0:
                self._changed.wait_for(lambda: self._commands or self._woken, wait_s)
            commands, self._commands = self._commands, []
            self._woken = False
        return commands
