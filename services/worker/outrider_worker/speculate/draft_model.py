"""A smaller model of the same tokenizer drafts for the target (Leviathan et al. 2023, section 2.1).

Knows: how a model is run one token at a time over the seats of a round, and whose K/V lies where.
Does not know: how drafts are drawn (a Chooser's matter), when they are wanted, the target.

Its K/V lies in a pool of its own, in the slots that the target's has, so prefix hits, preemption
and roll-back hold for both at once. A draft that was accepted has its K/V already, from when it
was proposed; feeding writes it again, with the same bits. That costs one forward a round, and
saves knowing which drafts these were: on the device that is a mask, not a smaller shape, so the
forward would have to run all the same as soon as one request had all its drafts accepted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.attention import AttentionBackend
from outrider_worker.attention.base import Rows
from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.graphs import Forwards, make_forwards
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.model.same_tokenizer import require_same_tokenizer
from outrider_worker.speculate.device import (
    Chosen,
    DeviceDrafts,
    DraftBatch,
    FeatureSpec,
    FedRows,
    StateSize,
)
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.drawn import drafts_of
from outrider_worker.speculate.scratch_rows import scratch_rows

_IMPOSSIBLE = float("-inf")


class DraftModel:
    """Drafts token by token, d forwards for d drafts (a StatefulDrafter)."""

    feature_spec: FeatureSpec | None = None
    """The tokens are enough."""

    def __init__(
        self,
        model: CausalLM,
        target_vocab_size: int,
        shared_ids: int,
        max_draft_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """shared_ids: ids of the tokenizer; what either model has beyond is filling."""
        self._model = model
        self._target_vocab_size = target_vocab_size
        self._shared_ids = min(shared_ids, target_vocab_size, model.config.vocab_size)
        self._dtype, self._device = dtype, torch.device(device)
        self._pool: KvPool | None = None
        self._max_rows = 0
        self._forwards: Forwards | None = None
        self._traits = DrafterTraits(
            name="draft",
            cost=DrafterCost.AUTOREGRESSIVE,
            max_draft_tokens=max_draft_tokens,
            score_bins=MAX_SCORE_BINS,
            writes_kv=True,
            max_context_tokens=model.config.max_positions,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    @property
    def state_size(self) -> StateSize:
        """See StatefulDrafter."""
        return StateSize(KvPool.bytes_per_token(self._model.config, self._dtype))

    def allocate(self, seats: int, pages: int) -> None:
        """See StatefulDrafter."""
        self._pool = KvPool.of_pages(self._model.config, pages, self._dtype, self._device)
        self._max_rows = seats * (self._traits.max_draft_tokens + 1)
        self._forwards = None

    @torch.inference_mode()
    def feed(self, fed: FedRows) -> None:
        """See StatefulDrafter: a forward for the sake of its K/V."""
        if fed.rows.count:
            self._run(fed.rows)

    @torch.inference_mode()
    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter.propose. The anchor's row comes first, then each draft's but the last.

        A request that has what it may get takes part as padding: it writes nowhere.
        """
        assert batch.chooser is not None, "a draft model's tokens are drawn by a chooser"
        depth = min(tokens, self._traits.max_draft_tokens)
        lengths = self._lengths(batch, depth)
        last = (batch.known - 1).clamp(min=0)
        token_ids, drawn = batch.history[batch.seats, last], list[Chosen]()
        for step in range(depth):
            rows = scratch_rows(batch, token_ids[:, None], last + step, alive=step < lengths)
            drawn.append(batch.chooser.choose(self._logits(self._run(rows)), step))
            token_ids = drawn[-1].token_ids
        return drafts_of(drawn, lengths, tokens)

    def _lengths(self, batch: DraftBatch, depth: int) -> Tensor:
        """[n] drafts of each request: the last one's row stays within the model's own context."""
        room = self._model.config.max_positions + 1 - batch.known
        return torch.minimum(batch.limit, room).clamp(min=0, max=depth)

    def _run(self, rows: Rows) -> Tensor:
        """[R, d] hidden states. Whatever rows hold, the model's tables are not left: ids that only
        the target has, and positions that only it reaches, are taken for the last that are here.
        """
        assert self._pool is not None, "a drafter is given its memory before it is used"
        config = self._model.config
        known = replace(
            rows,
            token_ids=rows.token_ids.clamp(max=config.vocab_size - 1),
            positions=rows.positions.clamp(max=config.max_positions - 1),
        )
        if self._forwards is None:  # the page table is there with the first rows
            self._forwards = make_forwards(self._model, self._pool, rows.page_table, self._max_rows)
        hidden, _ = self._forwards(known, self._pool)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, d] → [n, V] of the target's vocabulary; filling is never drafted."""
        logits = self._model.logits(hidden)[:, : self._shared_ids]
        return pad(logits, (0, self._target_vocab_size - self._shared_ids), value=_IMPOSSIBLE)


def open_draft_model(
    path: Path,
    target: LoadedModel,
    max_draft_tokens: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    backend: AttentionBackend | None = None,
) -> DraftModel:
    """The model at `path` (a folder or GGUF file) as a drafter for `target`.

    Raises ModelError saying what is wrong with its files, or where its tokenizer differs.
    """
    loaded = load_model(path, dtype, device, backend=backend)
    shared_ids = require_same_tokenizer(target.folder, loaded.folder)
    return DraftModel(
        loaded.model, target.config.vocab_size, shared_ids, max_draft_tokens, dtype, device
    )
