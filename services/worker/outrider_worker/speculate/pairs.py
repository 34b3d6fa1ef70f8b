"""What drafters have in common that are fed pairs: the token at i + 1, the target's feature of i.

Knows: what is kept between rounds (K/V in pages, one hidden state by seat), how long drafts may
be. Does not know: which pairs are run when, heads, verifiers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.kv import KvPool
from outrider_worker.model.draft.base import DraftHead
from outrider_worker.speculate.device import (
    DeviceDrafts,
    DraftBatch,
    FeatureSpec,
    FedRows,
    StateSize,
)
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits


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
    def state_size(self) -> StateSize:
        """See StatefulDrafter: keys and values by token, one hidden state by seat."""
        config = self._first.config
        return StateSize(
            token_bytes=KvPool.bytes_per_token(config, self._dtype),
            seat_bytes=config.hidden_size * self._dtype.itemsize,
        )

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
        room = self._first.config.max_positions + 1 - batch.known
        lengths = torch.minimum(batch.limit, room).clamp(min=0, max=self._steps(tokens))
        return torch.where(batch.known > 1, lengths, 0)

    def _steps(self, tokens: int) -> int:
        """The longest draft where at most `tokens` are asked for."""
        return min(tokens, self._traits.max_draft_tokens)
