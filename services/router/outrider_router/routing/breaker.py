"""Leaving a worker alone that fails again and again. Pure: time is an argument.

Closed, everything passes. After some failures in a row it opens for a while, each time for longer;
then one request at a time may try the worker, and a success closes it.
"""

from dataclasses import dataclass

_BURST_S = 0.25


@dataclass
class Breaker:
    """One worker's breaker.

    Attributes:
        most_failures: so many in a row open it. Those of one moment count once: a crash that takes
            many requests along is one crash.
        first_wait_s: for how long it opens first; doubled each time, up to `most_wait_s`.
    """

    most_failures: int = 3
    first_wait_s: float = 2.0
    most_wait_s: float = 30.0
    failures: int = 0
    _failed_s: float = float("-inf")
    _open_until_s: float = float("-inf")

    def is_open(self, now_s: float) -> bool:
        """True while nothing should be sent."""
        return now_s < self._open_until_s

    def sent(self, now_s: float) -> None:
        """A request goes to the worker; where it is a trial, the next one waits for its outcome."""
        if self.failures >= self.most_failures:
            self._open_until_s = now_s + self._wait_s()

    def failed(self, now_s: float) -> None:
        """A request failed by the worker's fault."""
        if now_s - self._failed_s < _BURST_S:
            return
        self._failed_s = now_s
        self.failures += 1
        if self.failures >= self.most_failures:
            self._open_until_s = now_s + self._wait_s()

    def succeeded(self) -> None:
        """A request ended well."""
        self.failures = 0
        self._open_until_s = float("-inf")

    def _wait_s(self) -> float:
        doublings = min(self.failures - self.most_failures, 16)
        return min(self.first_wait_s * 2.0**doublings, self.most_wait_s)
