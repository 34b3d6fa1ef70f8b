"""A step on its way: what was launched for whom, until its results are read. Plain data."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import NO_DRAFT, Draft, Request
from outrider_worker.runner import Step


@dataclass(slots=True)
class Member:
    """A request of a round, as it was when the round was launched.

    committed: K/V entries the host knew of. reach: K/V entries the round may commit on top.
    draft: what is being judged; unknown to the host until the step before has been read, where the
    device drafted.
    """

    request: Request
    epoch: int
    committed: int = 0
    reach: int = 0
    draft: Draft = NO_DRAFT

    @property
    def current(self) -> bool:
        """Whether results may still be applied to it."""
        return self.request.epoch == self.epoch


@dataclass(slots=True)
class Flight:
    """One launched step.

    verify_tokens: drafts that its round verifies in all at most.
    completing: requests whose prompt's last chunk is in it. fed: those for whom a drafter with a
    state is fed all that this step commits. drafting: those the device drafts for, with how many
    drafts each may get.
    """

    turn: Turn
    step: Step
    members: list[Member] = field(default_factory=list)
    verify_tokens: int = 0
    completing: list[Member] = field(default_factory=list)
    fed: set[Request] = field(default_factory=set)
    drafting: list[tuple[Member, int]] = field(default_factory=list)

    @property
    def going_on(self) -> list[Member]:
        """Who will decode in the next round, as far as is known."""
        return [each for each in (*self.members, *self.completing) if each.current]

    def hoped_tokens(self, requests: Iterable[Request]) -> list[int]:
        """Drafts that this step may have made for each of the requests."""
        hoped = {member.request: ask for member, ask in self.drafting}
        return [hoped.get(request, 0) for request in requests]

    def see_drafts(self) -> None:
        """The step before has been read: now the drafts under judgement are known."""
        for member in self.members:
            if member.current:
                member.draft = member.request.draft


def members_of(requests: Iterable[Request]) -> list[Member]:
    """Requests in their present epoch."""
    return [Member(request, request.epoch, request.committed) for request in requests]
