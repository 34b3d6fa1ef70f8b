"""Logprobs as both endpoints write them: one entry for each token of the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider_router.text.detokenize import IncrementalDecoder, TokenTable
from outrider_router.text.spelling import SpelledToken, Spelling
from outrider_router.types import TokenLogprobs

# JSON has no infinities; clients know this number as "never".
_LEAST_LOGPROB = -9999.0


@dataclass(frozen=True)
class TokenEntry:
    """One token of an answer; `offset` is the number of characters before it."""

    token: SpelledToken
    logprob: float
    top: tuple[tuple[SpelledToken, float], ...]
    offset: int


class ChoiceLogprobs:
    """Spells one choice's tokens, in order."""

    def __init__(
        self, spelling: Spelling, table: TokenTable, shown_special: frozenset[int]
    ) -> None:
        self._spelling = spelling
        self._decoder = IncrementalDecoder(table, shown_special)
        self._characters = 0

    def entries(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> list[TokenEntry]:
        """The next tokens' entries."""
        pairs = zip(token_ids, logprobs, strict=True)
        return [self._entry(token_id, one) for token_id, one in pairs]

    def _entry(self, token_id: int, one: TokenLogprobs) -> TokenEntry:
        offset = self._characters
        self._characters += len(self._decoder.push((token_id,)))
        top = tuple((self._spelling.of(other), _finite(value)) for other, value in one.top)
        return TokenEntry(self._spelling.of(token_id), _finite(one.logprob), top, offset)


def chat_logprobs(entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The `logprobs` object of chat completions."""
    content = [
        {
            **_spelled(entry.token, entry.logprob),
            "top_logprobs": [_spelled(token, value) for token, value in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The `logprobs` object of completions: the token itself is always among the likeliest."""
    return {
        "tokens": [entry.token.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {token.text: value for token, value in (*entry.top, (entry.token, entry.logprob))}
            for entry in entries
        ],
        "text_offset": [entry.offset for entry in entries],
    }


def _spelled(token: SpelledToken, logprob: float) -> dict[str, Any]:
    return {"token": token.text, "logprob": logprob, "bytes": list(token.raw)}


def _finite(logprob: float) -> float:
    return logprob if logprob > _LEAST_LOGPROB else _LEAST_LOGPROB
