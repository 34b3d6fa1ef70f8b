"""A request's place at a worker: its choices go in, their news comes out, merged while unread.

However slowly a client reads, at most one update per choice waits here, and it holds at most as
many tokens as the choice may have.
"""

import asyncio
from collections.abc import Mapping, Sequence

from outrider_router.types import Failure, FailureCode, Submission, Update


class Mailbox:
    """News of one request's choices, by their place in `submissions`."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self.submissions = tuple(submissions)
        self._open = set(range(len(submissions)))
        self._received = [0] * len(submissions)
        self._waiting: dict[int, Update] = {}
        self._news = asyncio.Event()

    def deliver(self, place: int, update: Update) -> None:
        """Add news; ignored after the end, turned into a failure past the choice's limit."""
        if place not in self._open:
            return
        self._received[place] += len(update.token_ids)
        if self._received[place] > self.submissions[place].sampling.max_tokens:
            update = Update(
                end=Failure(FailureCode.INTERNAL, "the worker sent more tokens than asked for")
            )
        if update.end is not None:
            self._open.discard(place)
        waiting = self._waiting.get(place)
        self._waiting[place] = waiting.followed_by(update) if waiting else update
        self._news.set()

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
            self._news.clear()
            await self._news.wait()
        news, self._waiting = self._waiting, {}
        return news
