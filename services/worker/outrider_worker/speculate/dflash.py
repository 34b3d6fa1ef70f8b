"""DFlash: a whole block of drafts in one pass of a small network over the target's features.

Knows: what is fed, which rows of a block are drafts, how they are drawn and scored.
Does not know: the network, files, verifiers.

Source: DFlash (arXiv 2602.06036); published implementation z-lab/dflash.

Letters: n requests, N seats, d drafts, h the network's hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.draft.block_config import BlockConfig
from outrider_worker.model.draft.dflash import BlockNetwork
from outrider_worker.model.draft.tables import Table
from outrider_worker.speculate.block_rows import lay_out_block, scratch_pages
from outrider_worker.speculate.device import (
    Chooser,
    Chosen,
    DeviceDrafts,
    DraftBatch,
    FeatureSpec,
    FedRows,
    StateSize,
)
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.drawn import drafts_of


@dataclass(frozen=True)
class BlockModel:
    """What a block drafter is made of."""

    config: BlockConfig
    network: BlockNetwork
    embed: Table
    """Token ids [b] int64 → [b, h]"""
    logits: Table
    """[b, h] → [b, V] float32 over the target's vocabulary; −inf for what cannot be drafted."""
    kept_ids: Tensor | None
    """[Vd] int64, the target's tokens that can be drafted; None for all."""
    dtype: torch.dtype
    device: torch.device


class DFlashDrafter:
    """Drafts a block at a time (a StatefulDrafter).

    Its state is the context: one key and one value per committed position and layer, made of the
    target's feature there. A draft depends on no other draft of its block, so the drafts of one
    round are drawn from laws that are all known beforehand.
    """

    name = "dflash"

    def __init__(self, model: BlockModel, max_draft_tokens: int) -> None:
        """Drafts are as long as a block has room for, at most `max_draft_tokens`."""
        self._model = model
        self._traits = DrafterTraits(
            name=self.name,
            cost=DrafterCost.PARALLEL,
            max_draft_tokens=min(max_draft_tokens, model.config.drafts),
            needs_hidden=True,
            score_bins=MAX_SCORE_BINS,
            writes_kv=True,
        )
        self.allocate(seats=0, pages=2)

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    @property
    def feature_spec(self) -> FeatureSpec:
        return FeatureSpec(self._model.config.boundaries)

    @property
    def draft_ids(self) -> Tensor | None:
        """See DraftsSomeTokens."""
        return self._model.kept_ids

    @property
    def state_size(self) -> StateSize:
        """See StatefulDrafter: the context by token, the pages that a block ends in by seat."""
        config = self._model.config
        token_bytes = KvPool.bytes_per_token(config.layers, self._model.dtype)
        scratch_tokens = scratch_pages(config.block_size) * PAGE_TOKENS
        return StateSize(token_bytes, seat_bytes=scratch_tokens * token_bytes)

    def allocate(self, seats: int, pages: int) -> None:
        """See StatefulDrafter.allocate; the seats' scratch comes on top of `pages`."""
        model, lines = self._model, seats + 1
        each = scratch_pages(model.config.block_size)
        behind = torch.arange(pages, pages + lines * each, device=model.device)
        self._scratch = behind.view(lines, each)
        self._pool = KvPool.of_pages(
            model.config.layers, pages + lines * each, model.dtype, model.device
        )

    def feed(self, fed: FedRows) -> None:
        """See StatefulDrafter.feed."""
        if fed.rows.count:
            self._model.network.add_context(fed.wanted_features, fed.rows, self._pool)

    @torch.inference_mode()
    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter.propose."""
        assert batch.chooser is not None, "a drafter that has logits needs a chooser"
        depth = min(tokens, self._traits.max_draft_tokens)
        drawn = self._draw(self._hidden(batch, depth), batch, batch.chooser)
        return drafts_of(drawn, batch.limit.clamp(min=0, max=depth), tokens)

    def _hidden(self, batch: DraftBatch, depth: int) -> Tensor:
        """[n, depth, h] of the rows that are drafts."""
        assert batch.page_table is not None, "a drafter that keeps keys needs the page table"
        model, config = self._model, self._model.config
        size = config.rows_for(depth)
        rows = lay_out_block(
            batch, batch.page_table, self._scratch, size, mask_token_id=config.mask_token_id
        )
        embedded = model.embed(rows.token_ids)
        hidden = model.network.run(embedded, rows, size, self._pool)
        first = 0 if config.from_anchor else 1
        return hidden.view(len(batch.seats), size, -1)[:, first : first + depth]

    def _draw(self, hidden: Tensor, batch: DraftBatch, chooser: Chooser) -> list[Chosen]:
        """The drafts of each step, from hidden [n, d, h]."""
        logits = self._logits(hidden)
        return [chooser.choose(logits[:, step], step) for step in range(hidden.shape[1])]

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, d, h] → [n, d, V] float32, in one product: the table is large."""
        return self._model.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
