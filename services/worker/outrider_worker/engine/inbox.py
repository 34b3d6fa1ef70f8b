"""The one door through which outside state enters the engine, drained once per round."""

import queue
from dataclasses import dataclass

from outrider_worker.engine.constraint import Constraint
from outrider_worker.engine.types import RequestSpec


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
    """Commands from any thread, in order of arrival."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    @property
    def empty(self) -> bool:
        return self._queue.empty()

    def wake(self) -> None:
        """End a wait without a command."""
        self._queue.put(None)

    def drain(self, wait_s: float = 0.0) -> list[Command]:
        """Everything that has come in; waits for the first at most `wait_s`."""
        commands = []
        try:
            first = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
            commands.append(first)
            while True:
                commands.append(self._queue.get_nowait())
        except queue.Empty:
            return [command for command in commands if command is not None]
