"""Stop strings in text that arrives in pieces: found wherever the pieces are cut, and not shown
unless that is asked for.

The first stop string to be complete wins; of two that end at one place, the longer. So the result
depends on the text alone, not on how it was cut. Text that might begin a stop string is held back
until it is clear whether it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_router.text.source import possible_beginning


@dataclass(frozen=True)
class Scan:
    """Text that may be shown, and the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Looks for stop strings in one choice's text.

    Args:
        stops: the stop strings, none of them empty.
        shown: the stop string that is found stays in the text.
    """

    def __init__(self, stops: Sequence[str], shown: bool = False) -> None:
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""

    def push(self, text: str) -> Scan:
        """The next piece of text. After a stop was found nothing more may be pushed."""
        if not self._stops:
            return Scan(text)
        seen = self._held + text
        if found := self._first_stop(seen):
            start, stop = found
            self._held = ""
            return Scan(seen[: start + len(stop)] if self._shown else seen[:start], stop)
        keep = len(seen) - possible_beginning(seen, self._stops)
        self._held = seen[keep:]
        return Scan(seen[:keep])

    def flush(self) -> str:
        """The text held back, once no more will come."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """Start and string of the stop that is complete first."""
        ends = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        return min(ends)[1:] if ends else None
