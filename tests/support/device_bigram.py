"""The smallest drafter that has logits: they depend on the last token alone.

It stands for all neural drafters where choosers and verifiers are tested.
"""

import torch
from torch import Tensor

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.scores import running_bins


class DeviceBigram:
    """Draws from a table [V, V] of logits behind each token, by the batch's chooser."""

    def __init__(self, logits: Tensor, max_draft_tokens: int = 8) -> None:
        self.traits = DrafterTraits(
            "bigram", DrafterCost.AUTOREGRESSIVE, max_draft_tokens, score_bins=MAX_SCORE_BINS
        )
        self._logits = logits

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        assert batch.chooser is not None
        last = batch.history[batch.seats, batch.known - 1]
        ids, confidence = list[Tensor](), list[Tensor]()
        for step in range(tokens):
            chosen = batch.chooser.choose(self._logits[last], step)
            last = chosen.token_ids
            ids.append(last)
            confidence.append(chosen.confidence)
        bins = running_bins(torch.stack(confidence, dim=1))
        return DeviceDrafts(torch.stack(ids, dim=1), batch.limit.clamp(max=tokens), bins)
