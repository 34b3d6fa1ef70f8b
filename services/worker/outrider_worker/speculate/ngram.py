"""Prompt lookup: propose what followed the last time the text looked like this.

Host drafter, no device memory. Only committed tokens are indexed, so there is nothing to roll
back. Deterministic given the history, so any choice of rows to verify is lossless.
Source: Saxena, "Prompt Lookup Decoding" (2023); incremental index of our own.
"""

from collections.abc import Sequence

from outrider_worker.engine.types import MAX_SCORE_BINS, NO_DRAFT, Draft, RequestKey
from outrider_worker.speculate.drafter import Ask, DrafterCost, DrafterTraits

MIN_MATCH_TOKENS = 2
MAX_INDEXED_TOKENS = 4
LONGEST_MATCH_TOKENS = MAX_SCORE_BINS - 1


class _History:
    """One request's tokens and, for each n, where each n-gram last ended *before* the end."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._last_end: dict[tuple[int, ...], int] = {}

    def extend(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            # Index the n-grams that end here only once a token follows them.
            self._index_end(len(self.token_ids))
            self.token_ids.append(token_id)

    def longest_match(self) -> tuple[int, int]:
        """(end, length) of the most recent earlier occurrence of the longest known suffix.

        `end` is the index of the token that followed it; length 0 means no match.
        """
        tokens = self.token_ids
        for size in range(min(MAX_INDEXED_TOKENS, len(tokens)), MIN_MATCH_TOKENS - 1, -1):
            end = self._last_end.get(tuple(tokens[-size:]))
            if end is not None:
                return end, self._match_length(end, size)
        return 0, 0

    def _index_end(self, end: int) -> None:
        for size in range(MIN_MATCH_TOKENS, min(MAX_INDEXED_TOKENS, end) + 1):
            self._last_end[tuple(self.token_ids[end - size : end])] = end

    def _match_length(self, end: int, size: int) -> int:
        """Extend a match to the left, as far as bins can tell lengths apart."""
        tokens, last = self.token_ids, len(self.token_ids)
        limit = min(LONGEST_MATCH_TOKENS, end)
        while size < limit and tokens[end - size - 1] == tokens[last - size - 1]:
            size += 1
        return size


class NgramDrafter:
    """Drafts by suffix match within the request's own prompt and output.

    The score bin of a draft is the length of the match, in tokens, at most 15.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._traits = DrafterTraits(
            name="ngram",
            cost=DrafterCost.HOST,
            max_draft_tokens=max_draft_tokens,
            sparse=True,
            score_bins=MAX_SCORE_BINS,
        )
        self._histories: dict[RequestKey, _History] = {}

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def prefill(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        self._histories.setdefault(key, _History()).extend(token_ids)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose_one(ask) for ask in asks]

    def observe(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        self._histories[key].extend(token_ids)

    def release(self, key: RequestKey) -> None:
        self._histories.pop(key, None)

    def _propose_one(self, ask: Ask) -> Draft:
        history = self._histories.get(ask.key)
        if history is None or ask.tokens <= 0:
            return NO_DRAFT
        end, length = history.longest_match()
        if length == 0:
            return Draft(asked_tokens=ask.tokens)
        token_ids = _continue(
            history.token_ids, end, min(ask.tokens, self._traits.max_draft_tokens)
        )
        return Draft(token_ids, (length,) * len(token_ids), ask.tokens)


def _continue(tokens: list[int], start: int, count: int) -> tuple[int, ...]:
    """`count` tokens from `start` on; past the end the copy goes on with itself (a loop)."""
    period = len(tokens) - start
    return tuple(tokens[start + i % period] for i in range(count))
