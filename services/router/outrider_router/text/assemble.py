"""One choice's answer out of its tokens: text, stop strings and the length limit in one walk.

Tokens are taken one by one, however many a round delivers, and the earliest event ends the answer.
A stop string that is complete at or before the last permitted token beats the limit. What comes
after the end is dropped and not counted. Every count of the answer's tokens comes from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_router.text.detokenize import IncrementalDecoder, TokenTable
from outrider_router.text.stops import StopMatcher


@dataclass(frozen=True)
class TextEnd:
    """Why the text itself ended the answer: a stop string, or (None) the length limit."""

    stop: str | None


@dataclass(frozen=True)
class Piece:
    """What a round added to an answer."""

    text: str
    token_ids: tuple[int, ...]
    end: TextEnd | None = None


class TextAssembler:
    """Walks one choice's tokens.

    Args:
        table: bytes of token ids.
        stops: stop strings, none of them empty.
        max_tokens: tokens to keep at most, at least 1.
    """

    def __init__(self, table: TokenTable, stops: Sequence[str], max_tokens: int) -> None:
        self._decoder = IncrementalDecoder(table)
        self._matcher = StopMatcher(stops)
        self._steps = 1 if stops else max_tokens
        self._max_tokens = max_tokens
        self.kept_tokens = 0

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The next tokens. After a piece with an end nothing more may be pushed."""
        kept = token_ids[: self._max_tokens - self.kept_tokens]
        text = ""
        # With stop strings each token is its own step, so that the count is exact.
        for at in range(0, len(kept), self._steps):
            scan = self._matcher.push(self._decoder.push(kept[at : at + self._steps]))
            text += scan.text
            if scan.stop is not None:
                return self._piece(text, kept[: at + 1], TextEnd(scan.stop))
        if self.kept_tokens + len(kept) == self._max_tokens:
            return self._piece(text + self._matcher.flush(), kept, TextEnd(None))
        return self._piece(text, kept)

    def finish(self) -> str:
        """Text still held back when something else ended the answer."""
        return self._matcher.flush()

    def _piece(self, text: str, kept: Sequence[int], end: TextEnd | None = None) -> Piece:
        self.kept_tokens += len(kept)
        return Piece(text, tuple(kept), end)
