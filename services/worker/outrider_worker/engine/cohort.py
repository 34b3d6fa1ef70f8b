"""Who drafts while speculation is off: a few new requests, for a bounded number of rounds. Pure.

A drafter with a state cannot be tried out in a single round: its state would have to be there. So
what would be a share of rounds is spent on whole requests instead. Every round earns a share, every
round in which one of them drafts costs one.
"""

from outrider_worker.engine.types import Request

_MOST_ROUNDS = 64
"""Drafts of so many rounds say enough of a request, and are as much as may be saved up."""


class Cohort:
    """The requests that draft on trial, and what rounds are left for such."""

    def __init__(self) -> None:
        self._earned = 0.0
        self._rounds: dict[Request, int] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._rounds

    @property
    def empty(self) -> bool:
        return not self._rounds

    def earn(self, share: float) -> None:
        """A round has come in which nobody else drafts."""
        if share > 0:  # not what is no number
            self._earned = min(self._earned + min(share, 1.0), float(_MOST_ROUNDS))

    def join(self, request: Request) -> bool:
        """Take a new request in, if one more can be afforded."""
        if request in self._rounds:
            return True
        if self._earned < 1.0 or self._rounds:
            return False
        self._rounds[request] = 0
        return True

    def spend(self, request: Request) -> bool:
        """The request drafts in this round; False once it has done so for long enough."""
        self._rounds[request] += 1
        self._earned -= 1.0
        return self._rounds[request] < _MOST_ROUNDS

    def leave(self, request: Request) -> None:
        """It has ended, or drafts like everybody else; no error for one that never joined."""
        self._rounds.pop(request, None)

    def disband(self) -> None:
        """Speculation is on again, or not even this is allowed."""
        self._rounds.clear()
