"""Launches steps: who takes part, with how many rows, on which slots.

Knows: requests, plans, room. What is launched may be unread when the next step is: then a round is
ordered by seats and upper bounds, and the device picks its drafts itself.
"""

from collections.abc import Sequence

from outrider_worker.engine.budget import NO_DRAFTS, Budgeter
from outrider_worker.engine.constraint import ConstraintFailed
from outrider_worker.engine.drafting import Drafting
from outrider_worker.engine.flight import Flight, Member, members_of
from outrider_worker.engine.orders import (
    ChunkOrder,
    DraftOrder,
    RoundOrder,
    SeatPages,
    StepOrder,
    pick_scores,
)
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.roster import Roster
from outrider_worker.engine.scheduler import PrefillChunk, Scheduler
from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import Failure, FailureCode, Request
from outrider_worker.runner import Mask, Runner
from outrider_worker.speculate.select import chain_scores, pick_prefixes


class Launcher:
    """Turns requests and a plan into launched work."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        pages: PageAccount,
        roster: Roster,
        budgeter: Budgeter,
        drafting: Drafting,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._pages = pages
        self._roster = roster
        self._budgeter = budgeter
        self._drafting = drafting

    def begin(self, turn: Turn, before: Flight | None) -> Flight:
        """Launch a round's forward; `before` is the step ahead of it, if that is unread."""
        requests = self._scheduler.decoding()
        order = self._round_order(requests, turn, before) if requests else None
        if order is None:
            return Flight(turn, self._runner.begin(None))
        turn.bucket_rows = self._runner.bucket_rows(order.rows)
        members = members_of(turn.requests)
        for member, cap in zip(members, order.caps, strict=True):
            member.reach = cap + 1
            member.request.ahead += cap + 1
        flight = Flight(turn, self._runner.begin(order), members)
        if before is None:
            flight.see_drafts()
        return flight

    def finish(self, flight: Flight, drafts_on_device: bool) -> None:
        """Launch the rest of the step; all steps before it have been read."""
        masks = [
            self._mask(member.request, member.draft.token_ids, flight.turn)
            if member.current
            else None
            for member in flight.members
        ]
        chunks, first_masks = self._chunks(flight)
        drafts = self._draft_order(flight) if drafts_on_device else None
        self._runner.finish(flight.step, StepOrder(chunks, drafts), masks, first_masks)

    def _round_order(
        self, requests: Sequence[Request], turn: Turn, before: Flight | None
    ) -> RoundOrder | None:
        """Who gets rows, and how many; None if nobody is left once room has been made."""
        if before is None:
            lengths = [len(request.draft) for request in requests]
        else:
            lengths = before.hoped_tokens(requests)
        pool_tokens = sum(lengths)
        decision = self._budgeter.verify(turn.plan, len(requests), turn.carried, pool_tokens)
        turn.clamped |= decision.clamped
        wanted = lengths
        if before is None and decision.tokens < pool_tokens:
            chains = [chain_scores(r, turn.plan, self._drafting.name) for r in requests]
            wanted = pick_prefixes(chains, decision.tokens)
        turn.requests, granted = self._reserve(requests, wanted, turn)
        if not turn.requests:
            return None
        return RoundOrder(
            seats=[SeatPages(request.seat, list(request.pages)) for request in turn.requests],
            drafts=_known_drafts(turn.requests, granted) if before is None else None,
            caps=granted,
            verify_tokens=min(decision.tokens, sum(granted)),
            width=max(granted),
            scores=pick_scores(turn.requests, turn.plan, self._drafting.name) if before else None,
        )

    def _reserve(
        self, requests: Sequence[Request], wanted: Sequence[int], turn: Turn
    ) -> tuple[list[Request], list[int]]:
        """Slots for the round. Whoever has to give way for them loses its drafts."""
        drafts = {id(request): request.draft for request in self._scheduler.running}
        room = self._scheduler.reserve_round(requests, wanted)
        for request in room.preempted:
            self._roster.step_back(request, drafts[id(request)], turn)
        return room.requests, room.granted

    def _mask(self, request: Request, drafts: Sequence[int], turn: Turn) -> Mask | None:
        """What a request's grammar allows; one that cannot go on ends its request."""
        if request.constraint is None:
            return None
        try:
            return request.constraint.masks(drafts)
        except ConstraintFailed as failure:
            self._roster.end(request, Failure(FailureCode.INVALID, str(failure), "grammar"), turn)
            return None

    def _chunks(self, flight: Flight) -> tuple[list[ChunkOrder], list[Mask | None]]:
        """The step's prefill; a request whose chunk completes decodes from the next round on."""
        orders, first_masks = [], []
        for chunk in self._scheduler.prefill_chunks():
            request, epoch = chunk.request, chunk.request.epoch
            mask = self._mask(request, (), flight.turn) if chunk.completes else None
            if request.epoch != epoch:
                continue
            orders.append(self._chunk_order(chunk, flight.turn))
            if chunk.completes:
                first_masks.append(mask)
                flight.completing.append(Member(request, epoch))
        return orders, first_masks

    def _chunk_order(self, chunk: PrefillChunk, turn: Turn) -> ChunkOrder:
        """From here on the chunk's K/V counts as written: all that reads it runs behind it."""
        request = chunk.request
        order = ChunkOrder(
            SeatPages(request.seat, list(request.pages)), chunk.start, chunk.tokens, chunk.completes
        )
        request.committed += chunk.tokens
        request.prefilled = chunk.completes
        self._pages.publish(request)
        turn.prefill_tokens += chunk.tokens
        return order

    def _draft_order(self, flight: Flight) -> DraftOrder | None:
        """Drafts for everyone who will decode in the next round, as far as is known now."""
        turn = flight.turn
        members = [each for each in (*flight.members, *flight.completing) if each.current]
        asks = self._drafting.asks([member.request for member in members], turn)
        if not any(asks):
            turn.drafted = NO_DRAFTS
            return None
        flight.drafting = list(zip(members, asks, strict=True))
        seats = [member.request.seat for member in members]
        return DraftOrder(seats, asks, turn.drafted.tokens)


def _known_drafts(requests: Sequence[Request], granted: Sequence[int]) -> list[tuple[int, ...]]:
    return [
        request.draft.token_ids[:count] for request, count in zip(requests, granted, strict=True)
    ]
