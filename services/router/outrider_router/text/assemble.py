"""One choice's answer out of its tokens: text, stop strings and the length limit in one walk.

Tokens are taken one by one, however many a round delivers, and the earliest event ends the answer.
A stop string that is complete at or before the last permitted token beats the limit. What comes
after the end is dropped and not counted. Every count of the answer's tokens comes from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from outrider_router.text.detokenize import IncrementalDecoder, TokenTable
from outrider_router.text.message import MessageReader, Reading
from outrider_router.text.parts import Content, Part, content_of, joined
from outrider_router.text.stops import StopMatcher


@dataclass(frozen=True)
class TextRules:
    """How an answer's tokens become what the client sees.

    Attributes:
        stops: stop strings, none of them empty.
        show_stop: the stop string that ends the answer stays in it.
        shown_special: special tokens that appear in the text; others are hidden. What `reading`
            looks for must be among them.
        reading: where thinking and tool calls are looked for.
    """

    stops: tuple[str, ...] = ()
    show_stop: bool = False
    shown_special: frozenset[int] = frozenset()
    reading: Reading = field(default_factory=Reading)


class EndKind(Enum):
    """What in the text itself can end an answer."""

    STOP_STRING = "stop_string"
    LENGTH = "length"
    CALL = "call"


@dataclass(frozen=True)
class TextEnd:
    """Why the text itself ended the answer; `stop` is the stop string, if one did."""

    kind: EndKind
    stop: str | None = None


class Piece(NamedTuple):
    """What a round added to an answer; some of the tokens may have been thinking."""

    parts: tuple[Part, ...]
    token_ids: tuple[int, ...]
    end: TextEnd | None = None
    reasoning_tokens: int = 0

    @property
    def text(self) -> str:
        """The text for the user."""
        return content_of(self.parts)


class TextAssembler:
    """Walks one choice's tokens.

    Args:
        table: bytes of token ids.
        rules: how they become text.
        max_tokens: tokens to keep at most, at least 1.
    """

    def __init__(self, table: TokenTable, rules: TextRules, max_tokens: int) -> None:
        reading = rules.reading
        self._decoder = IncrementalDecoder(table, rules.shown_special)
        self._matcher = StopMatcher(rules.stops, rules.show_stop)
        self._reader = MessageReader(reading)
        self._is_plain = not rules.stops and reading.is_plain
        self._max_tokens = max_tokens
        self.kept_tokens = 0

    @property
    def calls(self) -> int:
        """Tool calls announced so far."""
        return self._reader.calls

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The next tokens. After a piece with an end nothing more may be pushed."""
        kept = token_ids[: self._max_tokens - self.kept_tokens]
        return self._push_plain(kept) if self._is_plain else self._walk(kept)

    def _push_plain(self, kept: Sequence[int]) -> Piece:
        """Nothing is looked for in the text: it is all content, and only the limit can end it."""
        text = self._decoder.push(kept)
        self.kept_tokens += len(kept)
        end = TextEnd(EndKind.LENGTH) if self.kept_tokens == self._max_tokens else None
        return Piece((Content(text),) if text else (), tuple(kept), end)

    def _walk(self, kept: Sequence[int]) -> Piece:
        parts: list[Part] = []
        thinking = 0
        # The text can end the answer, so each token is its own step and counts are exact.
        for at, token_id in enumerate(kept):
            was_thinking = self._reader.in_thinking
            scan = self._matcher.push(self._decoder.push((token_id,)))
            parts += self._reader.push(scan.text)
            thinking += was_thinking or self._reader.in_thinking
            end = self._end_of_text(scan.stop)
            if end is not None:
                parts += self._reader.finish()
                return self._piece(parts, kept[: at + 1], thinking, end)
        if self.kept_tokens + len(kept) == self._max_tokens:
            end = TextEnd(EndKind.LENGTH)
            return self._piece([*parts, *self._flush()], kept, thinking, end)
        return self._piece(parts, kept, thinking)

    def finish(self) -> tuple[Part, ...]:
        """What is still held back when something else ended the answer."""
        return joined(self._flush())

    def _end_of_text(self, stop: str | None) -> TextEnd | None:
        if stop is not None:
            return TextEnd(EndKind.STOP_STRING, stop)
        return TextEnd(EndKind.CALL) if self._reader.complete else None

    def _flush(self) -> list[Part]:
        return [*self._reader.push(self._matcher.flush()), *self._reader.finish()]

    def _piece(
        self, parts: Sequence[Part], kept: Sequence[int], thinking: int, end: TextEnd | None = None
    ) -> Piece:
        self.kept_tokens += len(kept)
        return Piece(joined(parts), tuple(kept), end, thinking)
