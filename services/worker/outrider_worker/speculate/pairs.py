"""What drafters have in common that are fed pairs: the token at i + 1, the target's feature of i.

Knows: what is kept between rounds (K/V in pages, one hidden state by seat), how long drafts may
be, how they are handed over. Does not know: which pairs are run when, heads, verifiers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.kv import KvPool
from outrider_worker.model.draft.base import DraftHead
from outrider_worker.speculate.device import (
    Chosen,
    DeviceDrafts,
    DraftBatch,
    FeatureSpec,
    FedRows,
)
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.scores import running_bins


class PairDrafter(ABC):
    """A StatefulDrafter but for which pairs are run when.

    pool: keys and values of the committed pairs, and behind them what a round left.
    """

    pool: KvPool

    def __init__(
        self,
        head: DraftHead,
        name: str,
        max_draft_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str,
        lookahead_tokens: int = 1,
    ) -> None:
        """head: whose configuration sizes the state. dtype, device: its, and so the state's.

        lookahead_tokens: how many tokens behind a position its keys and values depend on.
        """
        self._first = head
        self._dtype, self._device = dtype, torch.device(device)
        self._traits = DrafterTraits(
            name=name,
            cost=DrafterCost.AUTOREGRESSIVE,
            max_draft_tokens=max_draft_tokens,
            needs_hidden=True,
            score_bins=MAX_SCORE_BINS,
            writes_kv=True,
            lookahead_tokens=lookahead_tokens,
            max_context_tokens=head.config.max_positions,
        )
        self.allocate(seats=0, pages=2)

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    @property
    def feature_spec(self) -> FeatureSpec:
        return FeatureSpec(self._first.boundaries)

    @property
    def draft_ids(self) -> Tensor | None:
        """See DraftsSomeTokens."""
        return self._first.kept_ids

    @property
    def kv_bytes_per_token(self) -> int:
        return KvPool.bytes_per_token(self._first.config, self._dtype)

    def allocate(self, seats: int, pages: int) -> None:
        """See StatefulDrafter."""
        config = self._first.config
        self.pool = KvPool.of_pages(config, pages, self._dtype, self._device)
        size = (seats + 1, config.hidden_size)
        self._carried = torch.zeros(size, dtype=self._dtype, device=self._device)

    @abstractmethod
    def feed(self, fed: FedRows) -> None:
        """See StatefulDrafter."""

    @abstractmethod
    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter."""

    def _keep_last(self, hidden: Tensor, fed: FedRows) -> None:
        """Carry on the rows of hidden [b, d] that are a request's last; others stay as they are."""
        last = hidden[fed.last.clamp(min=0, max=len(hidden) - 1)]
        fresh = fed.counts[:, None] > 0
        self._carried[fed.seats] = torch.where(fresh, last, self._carried[fed.seats])

    def _lengths(self, batch: DraftBatch, tokens: int) -> Tensor:
        """[n] drafts of each request: none without a pair, none beyond the head's own context."""
        room = self._first.config.max_positions - batch.known
        lengths = torch.minimum(batch.limit, room).clamp(min=0, max=self._steps(tokens))
        return torch.where(batch.known > 1, lengths, 0)

    def _steps(self, tokens: int) -> int:
        """The longest draft where at most `tokens` are asked for."""
        return min(tokens, self._traits.max_draft_tokens)


def features_of(fed: FedRows) -> Tensor:
    """[b, F] of rows that must have them."""
    assert fed.features is not None, "a drafter with a FeatureSpec is fed features"
    return fed.features


def drafts_of(drawn: Sequence[Chosen], lengths: Tensor, columns: int) -> DeviceDrafts:
    """What was drawn step by step, in tables of so many columns."""
    if not drawn:
        empty = lengths.new_zeros(len(lengths), columns)
        return DeviceDrafts(empty, lengths, empty)
    behind = (0, columns - len(drawn))
    confidence = torch.stack([each.confidence for each in drawn], dim=1)
    return DeviceDrafts(
        token_ids=pad(torch.stack([each.token_ids for each in drawn], dim=1), behind),
        lengths=lengths,
        bins=pad(running_bins(confidence), behind),
    )
