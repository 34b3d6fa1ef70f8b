"""A request's place at a worker: its choices go in, their news comes out, merged while unread.

However slowly a client reads, at most one update per choice waits here, and its size is bounded.
"""

import asyncio
from collections.abc import Mapping, Sequence

from outrider_router.turns import Turns
from outrider_router.types import Failure, FailureCode, Submission, Update

_LEAST_GAP_S = 0.004
"""Nobody sees whether tokens come one by one or together within this time; writing them one by one
costs many times as much."""
_MOST_UNREAD = 32_768
"""Tokens of a choice, with the alternatives told beside them, that may wait to be read."""
_UNREAD = Failure(FailureCode.DEADLINE, "the answer was not read in time")


class Mailbox:
    """News of one request's choices, by their place in `submissions`.

    Args:
        submissions: the choices.
        turns: the line in which readers are woken. First news and ends do not stand in it.
    """

    def __init__(self, submissions: Sequence[Submission], turns: Turns) -> None:
        self.submissions = tuple(submissions)
        self._open = set(range(len(submissions)))
        self._received = [0] * len(submissions)
        self._waiting: dict[int, Update] = {}
        self._turns = turns
        self._in_line = False
        self._read_s = 0.0
        self._arrival: asyncio.Future[None] | None = None

    def deliver(self, place: int, update: Update) -> None:
        """Add news; ignored after the end.

        Turned into a failure past the choice's limit, and where too much waits to be read.
        """
        if place not in self._open:
            return
        is_first = not self._received[place]
        self._received[place] += len(update.token_ids)
        if self._received[place] > self.submissions[place].sampling.max_tokens:
            update = Update(
                end=Failure(FailureCode.INTERNAL, "the worker sent more tokens than asked for")
            )
        waiting = self._waiting.get(place)
        if waiting is not None and update.end is None and self._is_too_much(place, waiting):
            update = Update(end=_UNREAD)
        if update.end is not None:
            self._open.discard(place)
        self._waiting[place] = waiting.followed_by(update) if waiting else update
        if is_first or update.end is not None:
            self._wake()
        elif not self._in_line:
            self._in_line = True
            self._stand_in_line()

    def _stand_in_line(self) -> None:
        loop, due_s = asyncio.get_running_loop(), self._read_s + _LEAST_GAP_S
        if due_s <= loop.time():
            self._turns.take(self._wake_in_turn)
        else:
            loop.call_at(due_s, self._turns.take, self._wake_in_turn)

    def _wake_in_turn(self) -> None:
        self._in_line = False
        self._wake()

    def _wake(self) -> None:
        if self._waiting and self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _is_too_much(self, place: int, waiting: Update) -> bool:
        each = 1 + (self.submissions[place].top_logprobs or 0)
        return len(waiting.token_ids) * each > _MOST_UNREAD

    def close(self, place: int) -> None:
        """No more news of this place are wanted."""
        self._open.discard(place)
        self._waiting.pop(place, None)

    def reopen(self, place: int) -> None:
        """News of an ended place go on, from another worker."""
        self._open.add(place)

    def fail(self, failure: Failure) -> None:
        """End every open place with a failure."""
        for place in tuple(self._open):
            self.deliver(place, Update(end=failure))

    async def next(self) -> Mapping[int, Update]:
        """Wait for news; at least one place has some."""
        while not self._waiting:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        self._read_s = asyncio.get_running_loop().time()
        news, self._waiting = self._waiting, {}
        return news
