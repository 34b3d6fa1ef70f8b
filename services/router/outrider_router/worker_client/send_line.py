"""What goes to one worker and has not been taken by its stream yet.

A worker that lags takes nothing for a while. Of what waits meanwhile, nothing is there in vain and
nothing twice: a choice that is dropped before it was sent leaves without a trace, and of signs of
life the newest is enough. Cancels go before submits, so each of them is of a choice that the worker
has, and every choice that waits holds its place in the router's admission. So the line is never
longer than twice what the router lets in, however many clients come and go.
"""

import asyncio
from collections.abc import AsyncGenerator

from outrider_router.types import Submission
from outrider_router.worker_client.wire import (
    Key,
    Outgoing,
    cancel_message,
    ping_message,
    submit_message,
)


class SendLine:
    """Messages for one stream, read by one reader. All calls are made on the event loop."""

    def __init__(self) -> None:
        self._ping: int | None = None
        self._cancels: dict[Key, Submission] = {}
        self._submits: dict[Key, Submission] = {}
        self._closed = False
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """Choices of which something is to be sent."""
        return len(self._cancels) + len(self._submits)

    def submit(self, submission: Submission) -> None:
        """Send one choice, after those that came before."""
        self._submits[submission.key] = submission
        self._arrived.set()

    def cancel(self, submission: Submission) -> None:
        """Have the worker drop a choice, unless it has never been sent."""
        if self._submits.pop(submission.key, None) is None:
            self._cancels[submission.key] = submission
            self._arrived.set()

    def ping(self, sequence: int) -> None:
        """Send a sign of life, before all else."""
        self._ping = sequence
        self._arrived.set()

    def close(self) -> None:
        """The stream is over: nothing more is sent, and its reader ends."""
        self._closed = True
        self._arrived.set()

    async def messages(self) -> AsyncGenerator[Outgoing]:
        """What is to be sent; a message leaves the line when it is asked for."""
        while not self._closed:
            self._arrived.clear()
            while (message := self._next()) is not None:
                yield message
            await self._arrived.wait()

    def _next(self) -> Outgoing | None:
        if self._closed:
            return None
        if self._ping is not None:
            sequence, self._ping = self._ping, None
            return ping_message(sequence)
        if self._cancels:
            return cancel_message(_first_of(self._cancels))
        return submit_message(_first_of(self._submits)) if self._submits else None


def _first_of(waiting: dict[Key, Submission]) -> Submission:
    """Take out what has waited longest."""
    return waiting.pop(next(iter(waiting)))
