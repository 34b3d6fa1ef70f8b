"""Which requests a drafter with a state is kept fed for, how far, and when that is given up. Pure.

The drafter's state lives on the device; here are bounds on it. While nothing is drafted a request
is *idle*: its features gather in the ring and are fed every 32 rounds. After 64 idle rounds, or
when the guard trips, it is *dropped*: its state is forgotten and it decodes plainly to its end,
unless it is preempted and computed anew. New requests that come while speculation is off have no
state from the start, except a cohort that finds out whether it should be on (docs/adr/0014).

Knows: requests, rounds, one drafter's traits. Does not know: plans, the guard, the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_worker.engine.cohort import Cohort
from outrider_worker.engine.feeding import DROP_AFTER_ROUNDS
from outrider_worker.engine.types import Request
from outrider_worker.speculate.drafter import DrafterTraits

FEED_AFTER_ROUNDS = 32
MOST_BEHIND_TOKENS = 64
"""A request further behind is fed at once: the ring holds so much, and one more round."""


@dataclass(slots=True)
class _State:
    """backlog: positions not fed yet, at most, without the `reach` of the round just launched.
    valid: positions fed, at least, as the host knows."""

    backlog: int = 0
    reach: int = 0
    valid: int = 0
    idle_rounds: int = 0

    @property
    def behind(self) -> int:
        return self.backlog + self.reach


@dataclass(frozen=True, slots=True)
class Feed:
    """Requests to feed in a step, and how many positions that can be in all."""

    requests: Sequence[Request]
    rows: int


class Upkeep:
    """All requests that one drafter has a state for. Without traits: there is no such drafter."""

    def __init__(self, traits: DrafterTraits | None) -> None:
        self._traits = traits
        self._states: dict[Request, _State] = {}
        self._speculating = False
        self._cohort = Cohort()

    @property
    def name(self) -> str:
        """The drafter's; empty without one."""
        return self._traits.name if self._traits else ""

    @property
    def trying(self) -> bool:
        """Somebody drafts although speculation is off."""
        return not self._cohort.empty

    def look(
        self, speculating: bool, share: float, tripped: bool = False, decoding: bool = True
    ) -> None:
        """How things stand in this step.

        share: of rounds in which a cohort may draft while it is off; steps in which nobody decodes
        are none. tripped: by the guard, which leaves nobody else a state.
        """
        self._speculating = speculating
        if speculating:
            self._cohort.disband()
            return
        if tripped and not share > 0:
            self._cohort.disband()
        if decoding:
            self._cohort.earn(share)
        if tripped:
            for request in [each for each in self._states if each not in self._cohort]:
                self.forget(request)

    def pool_of(self, request: Request) -> str | None:
        """The drafter whose state a request that is to be seated shall have, if any.

        Whoever is told so has a place in the cohort, where it takes one.
        """
        if self._traits is None or request.drafter != self.name:
            return None
        if request.spec.speculation.cap(self._traits.max_draft_tokens) == 0:
            return None
        if self.room_tokens(request, len(request.token_ids) + 1) <= 0:
            return None
        return self.name if self._speculating or self._cohort.join(request) else None

    def begin(self, request: Request) -> int | None:
        """A request has been seated; returns how many of its tokens the drafter knows already.

        None: it shall have no state.
        """
        if self.pool_of(request) is None:
            self.forget(request)
            return None
        self._states[request] = _State(valid=request.committed)
        return request.committed

    def has_state(self, request: Request) -> bool:
        return request in self._states

    def drafts(self, request: Request) -> bool:
        """Whether it may draft now."""
        return request in self._states and (self._speculating or request in self._cohort)

    def in_cohort(self, request: Request) -> bool:
        return request in self._cohort

    def room_tokens(self, request: Request, known: int) -> int:
        """Drafts that fit into the drafter's own context behind `known` tokens; negative behind
        it."""
        assert self._traits is not None
        if self._traits.max_context_tokens is None:
            return request.limit_tokens
        return self._traits.max_context_tokens + 1 - known

    def chunk(self, request: Request, end: int) -> None:
        """The request's text up to `end` is prefilled, and fed if it has a state."""
        self.fed(request, end)

    def round(self, request: Request, reach: int) -> None:
        """A round was launched that commits at most `reach` positions."""
        state = self._states.get(request)
        if state is not None:
            state.backlog, state.reach = state.behind, reach

    def feed(
        self, requests: Sequence[Request], drafting: Sequence[Request], most_rows: int
    ) -> Feed | None:
        """Whom to feed at the end of a step; the others rest, and are dropped when they have long.

        Args:
            requests: all that take part in the step.
            drafting: those of them that this drafter is going to draft for.
            most_rows: positions that the step's round can commit in all.
        """
        asked = set(drafting)
        for request in [each for each in requests if each in self._states]:
            if request in asked:
                self._note_draft(request)
            else:
                self._rest(request)
        due = [each for each in requests if each in self._states and self._due(each, asked)]
        if not due:
            return None
        states = [self._states[request] for request in due]
        backlog, reach = sum(s.backlog for s in states), sum(s.reach for s in states)
        for state in states:
            state.backlog = state.reach = 0
        return Feed(due, backlog + min(reach, most_rows))

    def fed(self, request: Request, tokens: int) -> None:
        """What was fed to it has been read: the drafter knows so many of its positions."""
        state = self._states.get(request)
        if state is not None:
            state.valid = tokens

    def pools(self, request: Request) -> dict[str, int]:
        """For the prefix cache: how many of its tokens are valid in the drafter's pool."""
        state = self._states.get(request)
        return {self.name: state.valid} if state else {}

    def forget(self, request: Request) -> None:
        """It has ended, was preempted, or has been dropped."""
        self._states.pop(request, None)
        self._cohort.leave(request)

    def _note_draft(self, request: Request) -> None:
        self._states[request].idle_rounds = 0
        if request in self._cohort and not self._cohort.spend(request):
            # It drafts in this step, for the last time.
            self._cohort.leave(request)

    def _rest(self, request: Request) -> None:
        state = self._states[request]
        state.idle_rounds += 1
        outgrown = self.room_tokens(request, request.committed + request.ahead + 1) <= 0
        if outgrown or state.idle_rounds >= DROP_AFTER_ROUNDS:
            self.forget(request)

    def _due(self, request: Request, asked: set[Request]) -> bool:
        state = self._states[request]
        if state.behind == 0:
            return False
        idle = state.idle_rounds and state.idle_rounds % FEED_AFTER_ROUNDS == 0
        return request in asked or bool(idle) or state.behind > MOST_BEHIND_TOKENS
