"""A text that is still being written, read by generators that wait for more where they need it.

A reader is a generator: it yields what it has found, and None where it cannot decide before more
text has come. So what is found depends on the text so far and never on how it was cut.
"""

from collections.abc import Generator, Sequence
from typing import TypeVar

from outrider_router.text.parts import Part

Result = TypeVar("Result")
Reader = Generator[Part | None, None, Result]


class TextEnded(Exception):
    """The text ended where more was needed."""


class Source:
    """The text from the last settled place on; `at` is where reading goes on.

    However long readers wait for what decides, `text` stays short: what they have read and not yet
    settled is set aside. So each letter is looked at, and moved, a few times and no more.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._aside: list[str] = []

    @property
    def rest(self) -> str:
        """What has not been read."""
        return self.text[self.at :]

    def starts(self, marker: str) -> bool:
        """True if the marker is what comes next."""
        return self.text.startswith(marker, self.at)

    def set_aside(self) -> None:
        """Keep what has been read, which nobody looks at before it is settled or read again."""
        if self.at:
            self._aside.append(self.text[: self.at])
            self.text, self.at = self.text[self.at :], 0

    def settle(self) -> str:
        """Forget what has been read, and return it."""
        self.set_aside()
        read = "".join(self._aside)
        self._aside.clear()
        return read

    def rewind(self) -> None:
        """Read again from the last settled place on."""
        self.text = "".join((*self._aside, self.text))
        self.at = 0
        self._aside.clear()


def more(source: Source) -> Reader[bool]:
    """Wait for more text; False if there will be none."""
    if source.ended:
        return False
    yield None
    return True


def need_more(source: Source) -> Reader[None]:
    """Wait for more text.

    Raises:
        TextEnded: there will be none.
    """
    if not (yield from more(source)):
        raise TextEnded


def skip_blanks(source: Source) -> Reader[None]:
    """Go to the next letter that is no blank, which `text` then begins with, or to the end."""
    while True:
        while source.at < len(source.text) and source.text[source.at].isspace():
            source.at += 1
        source.set_aside()
        if source.text or not (yield from more(source)):
            return


def possible_beginning(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of the markers without being whole."""
    longest = max(map(len, markers), default=0)
    for size in range(min(len(text), longest - 1), 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0


def earliest(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Place and text of the marker that comes first, of two at one place the longer."""
    found = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker)) >= 0]
    if not found:
        return None
    at, _, marker = min(found)
    return at, marker
