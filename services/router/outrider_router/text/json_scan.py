"""JSON values in a text that is still being written: where they end, and what strings say.

Only strings and brackets are followed; what stands between them is the reader's business.
"""

import json
import re

from outrider_router.text.parts import CallArguments
from outrider_router.text.source import Reader, Source, need_more, skip_blanks

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")


class Malformed(ValueError):
    """The text is not what was expected here."""


class JsonScan:
    """Finds the end of one object, array or string, in pieces; scalars have no end of their own."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.done = False

    def advance(self, text: str, at: int) -> int:
        """Go on at `at`; the place behind what belongs to the value, which may be the end."""
        while not self.done:
            if self._escaped:
                if at >= len(text):
                    return at
                at, self._escaped = at + 1, False
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._take(found.group())
        return at

    def _take(self, letter: str) -> None:
        if letter == "\\":
            self._escaped = True
            return
        if letter == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if letter in "{[" else -1
        self.done = self._depth <= 0 and not self._in_string


def read_letter(source: Source) -> Reader[str]:
    """The next letter that is no blank."""
    yield from skip_blanks(source)
    while source.at >= len(source.text):
        yield from need_more(source)
    source.at += 1
    return source.text[source.at - 1]


def read_string(source: Source) -> Reader[str]:
    """A whole string.

    Raises:
        Malformed: there is none here.
        TextEnded: the text ends inside of it.
    """
    if (yield from read_letter(source)) != '"':
        raise Malformed("a string was expected")
    start = source.at - 1
    source.at = start
    yield from read_value(source)
    try:
        return str(json.loads(source.text[start : source.at], strict=False))
    except ValueError as error:
        raise Malformed(str(error)) from error


def read_value(source: Source, call: int | None = None) -> Reader[None]:
    """A value of any kind; with `call` it is passed on, letter for letter, as its arguments."""
    yield from skip_blanks(source)
    while source.at >= len(source.text):
        yield from need_more(source)
    if source.text[source.at] not in '{["':
        yield from _read_scalar(source)
        return
    scan = JsonScan()
    while True:
        start = source.at
        source.at = scan.advance(source.text, start)
        if call is not None:
            yield CallArguments(call, source.text[start : source.at])
            source.settle()
        if scan.done:
            return
        yield from need_more(source)


def _read_scalar(source: Source) -> Reader[None]:
    start = source.at
    while not (end := _SCALAR_END.search(source.text, start)):
        yield from need_more(source)
    if end.start() == start:
        raise Malformed("a value was expected")
    source.at = end.start()
