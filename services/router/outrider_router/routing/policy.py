"""Choosing a worker. Pure: everything it depends on is an argument.

A request goes where most room is left, in places and in K/V memory, unless a worker that is almost
as free has seen the beginning of its prompt and can spare itself the work on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_SLOTS_IF_UNKNOWN = 64
_EQUAL = 1e-9


@dataclass(frozen=True)
class Demand:
    """What a request takes of a worker: choices, and tokens of K/V for prompt and answers."""

    choices: int = 1
    kv_tokens: int = 0


@dataclass(frozen=True)
class Candidate:
    """A ready worker and what is known about its load.

    What it reports covers other routers too, but is up to a second old; what this router has there
    is exact. The larger of both is certainly there.

    Attributes:
        address: names the worker.
        in_flight: choices that this router has there.
        reported: choices running and waiting there.
        slots: choices that it runs at once; 0 where unknown.
        own_kv_tokens: K/V that this router's choices there may take.
        kv_used_tokens: K/V in use as reported.
        kv_capacity_tokens: all of it; 0 where unknown.
        prefix_tokens: how much of the request's prompt this router has sent there lately.
    """

    address: str
    in_flight: int
    reported: int
    slots: int = 0
    own_kv_tokens: int = 0
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
    prefix_tokens: int = 0

    def load_with(self, demand: Demand) -> float:
        """How full the worker would be with the request: above 1 somebody has to wait."""
        choices = max(self.in_flight, self.reported) + demand.choices
        of_slots = choices / (self.slots or _SLOTS_IF_UNKNOWN)
        if not self.kv_capacity_tokens:
            return of_slots
        kv_tokens = max(self.own_kv_tokens, self.kv_used_tokens) + demand.kv_tokens
        return max(of_slots, kv_tokens / self.kv_capacity_tokens)


@dataclass(frozen=True)
class MoveLimits:
    """How often a choice may go to another worker, and how long it waits for one.

    Attributes:
        most_attempts: workers that one choice may be sent to, the first included.
        wait_s: how long a choice that has begun waits for a worker if none is ready.
    """

    most_attempts: int = 3
    wait_s: float = 1.5


class WorkerPicker(Protocol):
    """Decides between workers that could all take a request."""

    def choose(self, candidates: Sequence[Candidate], demand: Demand, turn: int) -> Candidate:
        """One of `candidates`, which is never empty; `turn` grows by one with each call."""
        ...


@dataclass(frozen=True)
class MostRoom:
    """The worker with the most room left, or one that knows the prompt; equals take turns.

    `slack`: how much fuller than the freest one a worker may be that knows the prompt's beginning.
    It bounds the imbalance that affinity can cause.
    """

    slack: float = 0.15

    def choose(self, candidates: Sequence[Candidate], demand: Demand, turn: int) -> Candidate:
        """See `WorkerPicker`."""
        loads = {c.address: c.load_with(demand) for c in candidates}
        least = min(loads.values())
        near = [c for c in candidates if loads[c.address] <= least + self.slack]
        known = max(c.prefix_tokens for c in near)
        best = [c for c in near if c.prefix_tokens == known] if known else candidates
        floor = min(loads[c.address] for c in best)
        equals = [c for c in best if loads[c.address] <= floor + _EQUAL]
        return equals[turn % len(equals)]
