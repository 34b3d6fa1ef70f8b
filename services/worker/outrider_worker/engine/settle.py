"""Applies what a step brought back: tokens to requests, counts to the turn.

Knows: whose each result is, and in which order things happen to a request. Does not know: how the
step was launched or what comes next.
"""

from collections.abc import Sequence

from outrider_worker.engine.commit import Commit, commit_run, end_ids
from outrider_worker.engine.drafting import Drafting
from outrider_worker.engine.flight import Flight, Member
from outrider_worker.engine.roster import Roster
from outrider_worker.engine.types import NO_DRAFT, Draft, Request
from outrider_worker.results import FirstToken, RoundOutcome, StepResult


class Settler:
    """Hands results to the requests that are still in the epoch they were launched in."""

    def __init__(
        self,
        roster: Roster,
        drafting: Drafting,
        eos_token_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        self._roster = roster
        self._drafting = drafting
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size

    def settle(self, flight: Flight, result: StepResult) -> None:
        """Apply a step's results, in the order in which the device produced them."""
        turn, times = flight.turn, result.times
        turn.target_s += times.target_s
        turn.feed_s += times.feed_s
        turn.draft_s += times.draft_s
        turn.prefill_s += times.prefill_s
        drafts = self._next_drafts(flight, result.drafts)
        for member, outcome in zip(flight.members, result.round, strict=True):
            self._settle_round(member, outcome, drafts.get(id(member.request), NO_DRAFT), flight)
        for member, first in zip(flight.completing, result.first, strict=True):
            self._settle_first(member, first, drafts.get(id(member.request), NO_DRAFT), flight)

    def _next_drafts(self, flight: Flight, drafts: Sequence[Draft]) -> dict[int, Draft]:
        """What the device drafted behind this step's tokens, by request."""
        return {
            id(member.request): draft.cut(ask, self._vocab_size)
            for (member, ask), draft in zip(flight.drafting, drafts, strict=True)
            if member.current
        }

    def _settle_round(
        self, member: Member, outcome: RoundOutcome, next_draft: Draft, flight: Flight
    ) -> None:
        """A round's result for one request; a row of one that has gone was wasted."""
        request, turn = member.request, flight.turn
        # The drafts of a request that has gone are forgotten, but they were there for a wasted row.
        turn.pool_tokens += max(len(member.draft), outcome.verified)
        first_position = request.committed if member.current else member.committed
        turn.note_rows(first_position, outcome.verified + 1)
        if not member.current:
            return
        turn.served_requests += 1
        request.ahead -= member.reach
        ends = end_ids(request, self._eos_token_ids)
        commit = commit_run(outcome.emitted, outcome.accepted, request.room_tokens, ends)
        turn.note_draft(request, member.draft, outcome.verified, commit.accepted_tokens)
        turn.accepted_tokens += commit.accepted_tokens
        relaxed = min(outcome.relaxed, commit.accepted_tokens)
        turn.relaxed_tokens += relaxed
        turn.emitted_tokens += len(commit.token_ids)
        if self._drafting.upkeep.in_cohort(request):
            turn.tried_requests += 1
            turn.tried_tokens += len(commit.token_ids)
        self._note_fed(flight, request, commit)
        request.draft = next_draft
        self._roster.give(request, commit, turn, outcome.logprobs, outcome.verified, relaxed)

    def _settle_first(
        self, member: Member, first: FirstToken, next_draft: Draft, flight: Flight
    ) -> None:
        """The token that a finished prompt emitted."""
        request, turn = member.request, flight.turn
        if not member.current:
            return
        ends = end_ids(request, self._eos_token_ids)
        commit = commit_run([first.token_id], 0, request.room_tokens, ends)
        turn.first_tokens += len(commit.token_ids)
        request.draft = next_draft
        self._roster.give(request, commit, turn, first.logprobs)

    def _note_fed(self, flight: Flight, request: Request, commit: Commit) -> None:
        """The device has fed all but the last of the tokens that the request has now."""
        if request in flight.fed:
            tokens = len(request.token_ids) + len(commit.token_ids) - 1
            self._drafting.upkeep.fed(request, tokens)
