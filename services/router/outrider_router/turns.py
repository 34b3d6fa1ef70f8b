"""Who is woken when much has come at once: a few readers at a time, in the order of their calls.

A worker's message holds news of all its choices. Were all their readers woken by it, nothing else
would happen until the last of them has been written to its client: a request that comes meanwhile
would wait for that at each of its steps. Between turns the event loop looks after everybody, and
news that come before a reader's turn are delivered with what it waits for already, so that the
busier the router is, the more each write carries.
"""

import asyncio
from collections import deque
from collections.abc import Callable

_AT_ONCE = 2
"""A request waits for one turn at each of its steps, and a turn of the loop costs far less than the
writes in it: few at once hardly cost throughput."""


class Turns:
    """A line of calls, of which a few are made in each round of the event loop."""

    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()

    def take(self, call: Callable[[], None]) -> None:
        """Call it soon, behind those that came before."""
        if not self._line:
            asyncio.get_running_loop().call_soon(self._next)
        self._line.append(call)

    def _next(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._line))):
            self._line.popleft()()
        if self._line:
            asyncio.get_running_loop().call_soon(self._next)
