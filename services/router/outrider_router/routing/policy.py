"""Choosing a worker. Pure: everything it depends on is an argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Candidate:
    """A ready worker and what is known about its load.

    Attributes:
        address: names the worker.
        in_flight: choices that this router has there.
        reported: choices running and waiting there by its latest description, which covers other
            routers too but is up to a second old.
    """

    address: str
    in_flight: int
    reported: int

    @property
    def load(self) -> int:
        """Choices that are certainly there."""
        return max(self.in_flight, self.reported)


class WorkerPicker(Protocol):
    """Decides between workers that could all take a request."""

    def choose(self, candidates: Sequence[Candidate], turn: int) -> Candidate:
        """One of `candidates`, which is never empty; `turn` grows by one with each call."""
        ...


class LeastLoaded:
    """The worker with the fewest choices; equals take turns."""

    def choose(self, candidates: Sequence[Candidate], turn: int) -> Candidate:
        least = min(candidate.load for candidate in candidates)
        equals = [candidate for candidate in candidates if candidate.load == least]
        return equals[turn % len(equals)]
