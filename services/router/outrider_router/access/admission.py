"""How much may be in flight, and a short fair line in front of it.

What finds a full line is refused at once, so that overload shows in milliseconds and costs no
memory. Pure bookkeeping on the event loop; what a refusal looks like is decided elsewhere.
"""

import asyncio
from types import TracebackType

from outrider_router.access.fair_queue import Claim, Entry, FairQueue
from outrider_router.access.tenant import Overloaded


class ShuttingDown(Exception):
    """Whoever still waits is not going to be served here."""


class Admission:
    """Limits on choices and prompt tokens in flight.

    Args:
        max_choices: choices in flight at most; a request with n choices takes n places.
        max_prompt_tokens: prompt tokens in flight at most.
        max_waiting: requests that may wait for places.
        divided: no key may fill the line; pointless where all requests count as one key's.
    """

    def __init__(
        self,
        max_choices: int,
        max_prompt_tokens: int,
        max_waiting: int = 0,
        divided: bool = True,
    ) -> None:
        self.max_choices = max_choices
        self._max_prompt_tokens = max_prompt_tokens
        self._line: FairQueue[Turn] = FairQueue(max_waiting, divided)
        self.choices = 0
        self.prompt_tokens = 0

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    def admit(self, choices: int) -> "Place":
        """Take places now or not at all.

        Raises:
            Overloaded: not so many are free, or others wait for them.
        """
        if len(self._line) or not self._fits(choices):
            raise Overloaded(f"{self.choices} of {self.max_choices} places are taken")
        return self._take(choices)

    async def wait(self, claim: Claim, limit_s: float) -> "Place":
        """Take places, after those who come first; no more than there are in all.

        Raises:
            Overloaded: the line is full, or the wait took too long.
            ShuttingDown: the router stops meanwhile.
        """
        if not len(self._line) and self._fits(claim.places):
            return self._take(claim.places)
        if claim.places > self.max_choices or not self._line.has_room(claim.key):
            raise Overloaded(
                f"{self.choices} of {self.max_choices} places are taken and the line is full"
            )
        turn: Turn = asyncio.get_running_loop().create_future()
        entry = self._line.push(claim, turn)
        try:
            async with asyncio.timeout(limit_s):
                return await turn
        except BaseException as error:
            self._give_up(turn, entry)
            if isinstance(error, TimeoutError):
                raise Overloaded(f"no place became free within {limit_s:g} s") from None
            raise

    def _give_up(
        self, turn: "asyncio.Future[Place]", entry: Entry["asyncio.Future[Place]"]
    ) -> None:
        """Nobody waits for this turn any more, which may have come in this very moment."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            turn.result().release()
            return
        self._line.remove(entry)
        self._next()

    def send_away(self) -> None:
        """Whoever waits is refused: the router is shutting down."""
        for turn in self._line.drain():
            if not turn.done():
                turn.set_exception(ShuttingDown())

    def _fits(self, choices: int) -> bool:
        return self.choices + choices <= self.max_choices

    def _take(self, choices: int) -> "Place":
        self.choices += choices
        return Place(self, choices)

    def _next(self) -> None:
        """Let in who is next, as far as there are places; a large request is not overtaken."""
        while (head := self._line.peek()) is not None:
            places, turn = head.claim.places, head.item
            if not turn.done() and not self._fits(places):
                return
            self._line.pop()
            if not turn.done():
                turn.set_result(self._take(places))

    def _charge(self, tokens: int) -> None:
        # A prompt larger than the limit is let in when it is alone: it would never be otherwise.
        if self.prompt_tokens and self.prompt_tokens + tokens > self._max_prompt_tokens:
            raise Overloaded("too many prompt tokens are in flight")
        self.prompt_tokens += tokens


class Place:
    """What one request takes, given back exactly once, at the latest when its `with` block ends."""

    def __init__(self, admission: Admission, choices: int) -> None:
        self._admission = admission
        self._choices = choices
        self._prompt_tokens = 0

    def charge_prompt(self, tokens: int) -> None:
        """Count the prompt once its length is known.

        Raises:
            Overloaded: too many prompt tokens are in flight.
        """
        self._admission._charge(tokens)
        self._prompt_tokens += tokens

    def release(self) -> None:
        """Give it back and let in who waits."""
        self._admission.choices -= self._choices
        self._admission.prompt_tokens -= self._prompt_tokens
        self._choices = self._prompt_tokens = 0
        self._admission._next()

    def __enter__(self) -> "Place":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.release()


Turn = asyncio.Future[Place]
