"""Tool calls in a model's text: found, read and passed on while they are being written.

What looks like a call and turns out to be none is content, with every letter of it.
"""

from dataclasses import dataclass

from outrider_router.text.json_scan import Malformed, read_letter, read_string, read_value
from outrider_router.text.parts import CallArguments, CallBegun, Content
from outrider_router.text.source import (
    Reader,
    Source,
    TextEnded,
    earliest,
    more,
    need_more,
    possible_beginning,
    skip_blanks,
)
from outrider_router.text.tool_formats import ToolFormat

_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("type", "id")
_MAX_HEADER_CHARS = 512


@dataclass
class Calls:
    """The calls of one message so far; `current` has been announced, and is still being written."""

    begun: int = 0
    current: int | None = None

    def begin(self, source: Source, name: str) -> CallBegun:
        """Announce the next call: from here on its text cannot become content any more."""
        source.settle()
        self.current, self.begun = self.begun, self.begun + 1
        return CallBegun(self.current, name)


def read_content(source: Source, tools: ToolFormat, calls: Calls, many: bool) -> Reader[None]:
    """The message's content and calls; with `many` false nothing is read behind the first call."""
    if tools.bare:
        yield from skip_blanks(source)
        if source.starts("{"):
            yield from _read_calls(source, tools, calls, many)
        else:
            source.rewind()
    while (many or not calls.begun) and (yield from _content_until_call(source, tools)):
        yield from _read_calls(source, tools, calls, many)


def _content_until_call(source: Source, tools: ToolFormat) -> Reader[bool]:
    """Pass content on; True once a marker says that a call begins."""
    while True:
        found = earliest(source.rest, tools.openers)
        held = 0 if found else possible_beginning(source.rest, tools.openers)
        end = source.at + found[0] if found else len(source.text) - held
        yield Content(source.text[source.at : end])
        source.at = end
        source.settle()
        if found:
            return True
        if not (yield from more(source)):
            yield Content(source.rest)
            return False


def _read_calls(source: Source, tools: ToolFormat, calls: Calls, many: bool) -> Reader[None]:
    """Calls that follow each other, from the first one's marker on."""
    before = calls.begun
    try:
        while (yield from _between(source, tools)):
            calls.current = None
            yield from _read_call(source, tools, calls)
            if not many:
                return
    except (Malformed, TextEnded):
        if calls.current is None:
            yield Content(source.settle())
    if calls.begun > before:
        yield from skip_blanks(source)
        source.settle()
    else:
        yield Content(source.settle())


def _between(source: Source, tools: ToolFormat) -> Reader[bool]:
    """Skip what stands before and between calls; False if no call follows."""
    marker = ""
    while True:
        yield from skip_blanks(source)
        if not source.text:
            return False
        if (closer := _next_of(source, tools.closers)) is not None:
            source.at += len(closer)
            return False
        if _undecided(source, (*tools.glue, *tools.closers)) and (yield from more(source)):
            continue
        glue = _next_of(source, tools.glue)
        if glue is None:
            return source.starts("{") or marker in tools.header_after
        marker, source.at = glue, source.at + len(glue)


def _next_of(source: Source, markers: tuple[str, ...]) -> str | None:
    return next((marker for marker in markers if source.starts(marker)), None)


def _undecided(source: Source, markers: tuple[str, ...]) -> bool:
    rest = source.text[source.at : source.at + max(map(len, markers), default=0)]
    return any(marker != rest and marker.startswith(rest) for marker in markers)


def _read_call(source: Source, tools: ToolFormat, calls: Calls) -> Reader[None]:
    if source.starts("{"):
        yield from _read_object(source, calls)
    else:
        yield from _read_headed(source, tools, calls)


def _read_headed(source: Source, tools: ToolFormat, calls: Calls) -> Reader[None]:
    """A call whose name stands before its arguments."""
    while (brace := source.text.find("{")) < 0:
        if len(source.text) > _MAX_HEADER_CHARS:
            raise Malformed("no arguments")
        yield from need_more(source)
    if tools.header is None or brace > _MAX_HEADER_CHARS:
        raise Malformed("no arguments")
    header = tools.header.fullmatch(source.text, 0, brace)
    if header is None:
        raise Malformed("no name")
    source.at = brace
    yield calls.begin(source, header["name"])
    yield from read_value(source, calls.current)


def _read_object(source: Source, calls: Calls) -> Reader[None]:
    """A call as one JSON object with name and arguments, in either order."""
    name: str | None = None
    early: str | None = None
    yield from read_letter(source)
    while True:
        key = yield from read_string(source)
        if (yield from read_letter(source)) != ":":
            raise Malformed("no value")
        if key == "name":
            name = yield from read_string(source)
        elif key in _ARGUMENT_KEYS and name is not None:
            yield calls.begin(source, name)
            yield from _pass_arguments(source, calls.begun - 1)
        elif key in _ARGUMENT_KEYS:
            early = yield from _read_arguments(source)
        elif key in _OTHER_KEYS:
            yield from read_value(source)
        else:
            raise Malformed(f"unexpected key {key!r}")
        letter = yield from read_letter(source)
        if letter == "}":
            break
        if letter != ",":
            raise Malformed("no end")
    if calls.current is None:
        if name is None:
            raise Malformed("no name")
        yield calls.begin(source, name)
        yield CallArguments(calls.begun - 1, early or "{}")


def _pass_arguments(source: Source, call: int) -> Reader[None]:
    """Arguments as they are written; some models write them as a string that holds JSON."""
    yield from skip_blanks(source)
    if source.starts('"'):
        yield CallArguments(call, (yield from read_string(source)))
    else:
        yield from read_value(source, call)


def _read_arguments(source: Source) -> Reader[str]:
    """The same, all at once."""
    yield from skip_blanks(source)
    reader = read_string if source.starts('"') else read_value
    return (yield from reader(source))
