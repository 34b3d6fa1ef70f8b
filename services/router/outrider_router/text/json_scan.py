"""JSON values in a text that is still being written: where they end, and what strings say.

Only strings and brackets are followed; what stands between them is the reader's business.
"""

import json
import re

from outrider_router.text.parts import CallArguments
from outrider_router.text.source import Reader, Source, TextEnded, need_more, skip_blanks

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_MAX_SCALAR_CHARS = 512
"""Far longer than any number that a tool can use."""


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
    letter = yield from _coming(source)
    source.at += 1
    return letter


def _coming(source: Source) -> Reader[str]:
    """The same, left to be read."""
    yield from skip_blanks(source)
    if not source.text:
        raise TextEnded
    return source.text[0]


def read_string(source: Source) -> Reader[str]:
    """A whole string.

    Raises:
        Malformed: there is none here.
        TextEnded: the text ends inside of it.
    """
    if (yield from _coming(source)) != '"':
        raise Malformed("a string was expected")
    written = yield from read_value(source)
    try:
        return str(json.loads(written, strict=False))
    except ValueError as error:
        raise Malformed(str(error)) from error


def read_value(source: Source, call: int | None = None) -> Reader[str]:
    """A value of any kind as it is written; with `call` passed on meanwhile as its arguments.

    Raises:
        Malformed: there is none here, or a scalar longer than any that says something.
        TextEnded: the text ends inside of it.
    """
    if (yield from _coming(source)) not in '{["':
        return (yield from _read_scalar(source, call))
    scan, pieces = JsonScan(), []
    while True:
        start = source.at
        source.at = scan.advance(source.text, start)
        piece = source.text[start : source.at]
        if call is None:
            pieces.append(piece)
            source.set_aside()
        else:
            yield CallArguments(call, piece)
            source.settle()
        if scan.done:
            return "".join(pieces)
        yield from need_more(source)


def _read_scalar(source: Source, call: int | None) -> Reader[str]:
    # Short enough to be looked through anew with every piece.
    while not (end := _SCALAR_END.search(source.text)):
        if len(source.text) > _MAX_SCALAR_CHARS:
            raise Malformed("no scalar is that long")
        yield from need_more(source)
    if not 0 < end.start() <= _MAX_SCALAR_CHARS:
        raise Malformed("a value was expected")
    source.at = end.start()
    scalar = source.text[: source.at]
    if call is not None:
        yield CallArguments(call, scalar)
    return scalar
