"""Prompt lookup on the device: the drafts of `ngram`, found without the host.

Knows: how to compare a text with its own end, for many texts at once. Keeps no index: each call
searches the history, in integer operations, so the result is the host drafter's, token for token.
Does not know: where the history comes from, what becomes of the drafts.

Source: Saxena, "Prompt Lookup Decoding" (2023); the search by shifted comparison is our own.
"""

import torch
from torch import Tensor

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.ngram import (
    LONGEST_MATCH_TOKENS,
    MAX_INDEXED_TOKENS,
    MIN_MATCH_TOKENS,
)

_WINDOW_TOKENS = 4096
"""Columns searched at a time: bounds the scratch memory to about 20 × n × window bytes."""


class DeviceNgramDrafter:
    """Drafts by suffix match within each request's own prompt and output (a DeviceDrafter).

    The longest n-gram of 2…4 tokens that occurred before wins, at its most recent place. The score
    bin of a draft is the length of the match, in tokens, at most 15. Costs a pass over n × L tokens
    whatever is found.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._traits = DrafterTraits(
            name="ngram",
            cost=DrafterCost.PARALLEL,
            max_draft_tokens=max_draft_tokens,
            sparse=True,
            score_bins=MAX_SCORE_BINS,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter.propose."""
        missed, last = _latest_match(batch)
        longest = batch.limit.clamp(min=0, max=min(tokens, self._traits.max_draft_tokens))
        matched = _match_length(batch, last).masked_fill_(missed, 0)
        return DeviceDrafts(
            token_ids=_continue(batch, (last + 1).masked_fill_(missed, 0), tokens),
            lengths=longest.masked_fill_(missed, 0),
            bins=matched[:, None].expand(-1, tokens),
        )


def _latest_match(batch: DraftBatch) -> tuple[Tensor, Tensor]:
    """(missed [n] bool, last [n]): where the longest n-gram that ends the text ended last before.

    Length and place are sought as one number, length × L + place: the longer wins, then the later.
    """
    columns = batch.history.shape[1]
    tail = _tokens_before_end(batch, MAX_INDEXED_TOKENS)
    best = torch.zeros_like(batch.known, dtype=torch.int32)
    # Windows overlap by what a match may reach back. In the overlap a later window sees matches
    # shortened, but the one before has seen the same places whole, and the greater number stays.
    for start in range(0, columns, _WINDOW_TOKENS):
        first = max(0, start - MAX_INDEXED_TOKENS + 1)
        window = batch.history[:, first : start + _WINDOW_TOKENS].index_select(0, batch.seats)
        places = torch.arange(
            first, first + window.shape[1], dtype=torch.int32, device=window.device
        )
        rank = _suffix_lengths(window, tail).to(torch.int32).mul_(columns).add_(places)
        # A token must follow: the text's own end is no earlier occurrence of itself.
        rank.masked_fill_(places >= batch.known[:, None] - 1, 0)
        best = torch.maximum(best, rank.amax(dim=1))
    return best < MIN_MATCH_TOKENS * columns, (best % columns).to(torch.int64)


def _suffix_lengths(window: Tensor, tail: Tensor) -> Tensor:
    """window [n, W], tail [n, S] newest first → [n, W] int8: tokens up to each place, at most S,
    that equal the end of the text."""
    matched = window == tail[:, :1]
    lengths = matched.to(torch.int8)
    for back in range(1, min(tail.shape[1], window.shape[1])):
        matched[:, back:] &= window[:, :-back] == tail[:, back, None]
        matched[:, :back] = False
        lengths += matched.view(torch.int8)
    return lengths


def _match_length(batch: DraftBatch, last: Tensor) -> Tensor:
    """[n]: how many tokens up to place `last` equal the end of the text, as far as bins tell."""
    places = last[:, None] - torch.arange(LONGEST_MATCH_TOKENS, device=last.device)
    agreed = _tokens_at(batch, places) == _tokens_before_end(batch, LONGEST_MATCH_TOKENS)
    return (agreed & (places >= 0)).to(torch.int64).cumprod(dim=1).sum(dim=1)


def _continue(batch: DraftBatch, start: Tensor, count: int) -> Tensor:
    """[n, count] tokens from `start` [n] on; past the end the copy goes on with itself (a loop)."""
    period = (batch.known - start).clamp(min=1)
    steps = torch.arange(count, device=start.device)
    return _tokens_at(batch, start[:, None] + steps % period[:, None])


def _tokens_before_end(batch: DraftBatch, count: int) -> Tensor:
    """[n, count]: the last tokens of each text, newest first; anything where it is shorter."""
    back = torch.arange(1, count + 1, device=batch.known.device)
    return _tokens_at(batch, batch.known[:, None] - back)


def _tokens_at(batch: DraftBatch, places: Tensor) -> Tensor:
    """[n, …] tokens of each text; places before its start read the first column."""
    return batch.history[batch.seats[:, None], places.clamp(min=0)]
