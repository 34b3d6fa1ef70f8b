"""One choice's text read as a message: thinking first, then content and tool calls.

Each choice has a reader of its own. Text in, parts out; how it is cut makes no difference.
"""

from dataclasses import dataclass

from outrider_router.text.calls import Calls, read_content
from outrider_router.text.parts import Content, Part
from outrider_router.text.reasoning import ThinkingMarkers, begins_thinking, read_thinking
from outrider_router.text.source import Reader, Source, more, skip_blanks
from outrider_router.text.tool_formats import ToolFormat


@dataclass(frozen=True)
class Reading:
    """How a message is to be read.

    Attributes:
        thinking: markers to look for, None to leave them in the text.
        thinking_open: the prompt ends within thinking.
        tools: the calls to look for, None to leave them in the text.
        many_calls: false ends the message with its first call.
    """

    thinking: ThinkingMarkers | None = None
    thinking_open: bool = False
    tools: ToolFormat | None = None
    many_calls: bool = True

    @property
    def is_plain(self) -> bool:
        """Nothing is looked for: all text is content."""
        return self.thinking is None and self.tools is None


class MessageReader:
    """Reads one choice's text."""

    def __init__(self, how: Reading) -> None:
        self._source = Source()
        self._calls = Calls()
        self._reader = self._read(how)
        self.in_thinking = how.thinking is not None and how.thinking_open
        self.complete = False

    @property
    def calls(self) -> int:
        """Calls announced so far."""
        return self._calls.begun

    def push(self, text: str) -> list[Part]:
        """What became certain with this text."""
        self._source.text += text
        return self._go_on()

    def finish(self) -> list[Part]:
        """What was held back, once no more text will come."""
        self._source.ended = True
        return self._go_on()

    def _go_on(self) -> list[Part]:
        parts: list[Part] = []
        for part in self._reader:
            if part is None:
                return parts
            parts.append(part)
        return parts

    def _read(self, how: Reading) -> Reader[None]:
        if how.thinking is not None:
            yield from self._read_thinking(how.thinking, how.thinking_open)
        if how.tools is not None:
            yield from read_content(self._source, how.tools, self._calls, how.many_calls)
            self.complete = not how.many_calls and not self._source.ended
            return
        yield from _read_plain(self._source)

    def _read_thinking(self, markers: ThinkingMarkers, opened: bool) -> Reader[None]:
        if (yield from begins_thinking(self._source, markers, opened)):
            self.in_thinking = True
            yield from read_thinking(self._source, markers.closer)
            self.in_thinking = False
            yield from skip_blanks(self._source)
            self._source.settle()


def _read_plain(source: Source) -> Reader[None]:
    """All that comes is content."""
    while True:
        yield Content(source.rest)
        source.at = len(source.text)
        source.settle()
        if not (yield from more(source)):
            return
