"""Launches steps: who takes part, with how many rows, on which slots.

Knows: requests, plans, room. What is launched may be unread when the next step is: then a round is
ordered by seats and upper bounds, and the device picks its drafts itself.
"""

from collections.abc import Sequence

from outrider_worker.engine.constraint import ConstraintFailed
from outrider_worker.engine.drafting import Drafting, Pool
from outrider_worker.engine.flight import Flight, Member, members_of
from outrider_worker.engine.orders import (
    ChunkOrder,
    DraftOrder,
    FeedOrder,
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
        drafting: Drafting,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._pages = pages
        self._roster = roster
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
            self._drafting.upkeep.round(member.request, cap + 1)
        flight = Flight(turn, self._runner.begin(order), members, order.verify_tokens)
        if before is None:
            flight.see_drafts()
        return flight

    def finish(self, flight: Flight) -> None:
        """Launch the rest of the step; all steps before it have been read."""
        masks = [
            self._mask(member.request, member.draft.token_ids, flight.turn)
            if member.current
            else None
            for member in flight.members
        ]
        chunks, first_masks = self._chunks(flight)
        drafts = self._draft_orders(flight)
        feed = self._feed_order(flight)
        self._runner.finish(flight.step, StepOrder(chunks, feed, drafts), masks, first_masks)

    def _round_order(
        self, requests: Sequence[Request], turn: Turn, before: Flight | None
    ) -> RoundOrder | None:
        """Who gets rows, and how many; None if nobody is left once room has been made."""
        asked = [each.draft.asked_tokens for each in requests]
        lengths = [len(each.draft) for each in requests]
        if before is not None:
            asked = lengths = before.hoped_tokens(requests)
        decision = self._drafting.verify(turn, len(requests), _pools(requests, asked, lengths))
        turn.clamped |= decision.clamped
        wanted = lengths
        if before is None and decision.tokens < sum(lengths):
            chains = [chain_scores(r, turn.plan, r.drafter) for r in requests]
            wanted = pick_prefixes(chains, decision.tokens)
        turn.requests, granted = self._reserve(requests, wanted, turn)
        if not turn.requests:
            return None
        return RoundOrder(
            seats=[_pages_of(request) for request in turn.requests],
            drafts=_known_drafts(turn.requests, granted) if before is None else None,
            caps=granted,
            verify_tokens=min(decision.tokens, sum(granted)),
            width=max(granted),
            scores=pick_scores(turn.requests, turn.plan) if before else None,
            given=[
                place
                for place, request in enumerate(turn.requests)
                if request.drafter in turn.carried_on_host
            ],
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
        request, upkeep = chunk.request, self._drafting.upkeep
        order = ChunkOrder(
            _pages_of(request),
            chunk.start,
            chunk.tokens,
            chunk.completes,
            feeds=upkeep.has_state(request),
        )
        request.committed += chunk.tokens
        request.prefilled = chunk.completes
        upkeep.chunk(request, chunk.start + chunk.tokens)
        self._pages.publish(request, upkeep.pools(request))
        turn.prefill_tokens += chunk.tokens
        return order

    def _draft_orders(self, flight: Flight) -> list[DraftOrder]:
        """Drafts for everyone who will decode in the next round, as far as is known now."""
        turn = flight.turn
        names = [name for name in turn.drafted if name not in turn.on_host]
        orders = []
        for name in names:
            order = self._draft_order(flight, name)
            if order is None:
                del turn.drafted[name]
            else:
                orders.append(order)
        return orders

    def _draft_order(self, flight: Flight, name: str) -> DraftOrder | None:
        members = flight.going_on
        asks = self._drafting.asks([member.request for member in members], flight.turn, name)
        asked = [
            (member, ask)
            for member, tokens in zip(members, asks, strict=True)
            if (ask := self._with_room(member.request, tokens, name))
        ]
        if not asked:
            return None
        flight.drafting += asked
        return DraftOrder(
            drafter=name,
            seats=[_pages_of(member.request) for member, _ in asked],
            asks=[ask for _, ask in asked],
            tokens=flight.turn.drafted[name].tokens,
        )

    def _with_room(self, request: Request, tokens: int, name: str) -> int:
        """Drafts for which there is room where the drafter writes K/V: all, or those that fit."""
        if tokens and self._drafting.drafters.device[name].traits.writes_kv:
            return self._scheduler.reserve_scratch(request, tokens)
        return tokens

    def _feed_order(self, flight: Flight) -> FeedOrder | None:
        """What the drafter with a state has to see, before it drafts or lest it fall behind."""
        upkeep, going_on = self._drafting.upkeep, [each.request for each in flight.going_on]
        drafting = [each.request for each, _ in flight.drafting if upkeep.has_state(each.request)]
        most_rows = sum(1 for each in flight.members) + flight.verify_tokens
        feed = upkeep.feed(going_on, drafting, most_rows)
        if feed is None:
            return None
        flight.fed.update(feed.requests)
        return FeedOrder([_pages_of(request) for request in feed.requests], feed.rows)


def _pages_of(request: Request) -> SeatPages:
    return SeatPages(request.seat, list(request.pages))


def _pools(
    requests: Sequence[Request], asked: Sequence[int], lengths: Sequence[int]
) -> dict[str, Pool]:
    """By drafter: how many requests it was asked for, and how many drafts there are or may be."""
    pools: dict[str, Pool] = {}
    for request, tokens, length in zip(requests, asked, lengths, strict=True):
        pool = pools.get(request.drafter, Pool())
        pools[request.drafter] = Pool(pool.requests + (tokens > 0), pool.tokens + length)
    return pools


def _known_drafts(requests: Sequence[Request], granted: Sequence[int]) -> list[tuple[int, ...]]:
    return [
        request.draft.token_ids[:count] for request, count in zip(requests, granted, strict=True)
    ]
