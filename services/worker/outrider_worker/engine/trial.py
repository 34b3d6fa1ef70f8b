"""Whether speculation, switched off by the guard, may come back: a bounded look. Pure.

A small share of rounds drafts and verifies. The dearer they may be, as far as is known, the smaller
the share: they cost 0.3 % together. Readmission needs evidence, 64 request-rounds and 16 rounds at
least, and a gain that is no noise.
"""

from math import sqrt

_REQUEST_ROUNDS = 64
_ROUNDS = 16
_LARGEST_SHARE = 1 / 32
_BUDGET_RATIO = 0.003
_LEAST_SPREAD = 0.6


class Trial:
    """One trial's own ledger, in tokens per request."""

    def __init__(self) -> None:
        self._phase = 0.0
        self._rounds = 0
        self._request_rounds = 0
        self._sum = 0.0
        self._squares = 0.0
        self._unfinished = 0.0

    def take(self) -> bool:
        """Whether the next round is one of the trial's; to be asked once per round."""
        self._phase += self.share
        if self._phase < 1.0:
            return False
        self._phase -= 1.0
        return True

    def book(self, requests: int, increment: float, verifying: bool) -> None:
        """Add a round's loss (a gain is negative).

        A look takes two rounds, one that drafts and one that verifies; they count as one.
        """
        self._unfinished += increment
        if not verifying:
            return
        loss, self._unfinished = self._unfinished, 0.0
        self._rounds += 1
        self._request_rounds += requests
        self._sum += loss
        self._squares += loss * loss

    @property
    def over(self) -> bool:
        """Enough has been seen to decide."""
        return self._rounds >= _ROUNDS and self._request_rounds >= _REQUEST_ROUNDS

    @property
    def gained(self) -> bool:
        """The mean gain is larger than its standard error."""
        return -self._mean > self._standard_error

    @property
    def share(self) -> float:
        """What the budget allows at the loss that a look may well have."""
        if self._rounds == 0:
            return _LARGEST_SHARE
        likely_loss = self._mean + self._standard_error
        return min(_LARGEST_SHARE, _BUDGET_RATIO / max(likely_loss, 1e-6))

    @property
    def _mean(self) -> float:
        return self._sum / self._rounds

    @property
    def _standard_error(self) -> float:
        variance = max(self._squares / self._rounds - self._mean**2, _LEAST_SPREAD**2)
        return sqrt(variance / self._rounds)
