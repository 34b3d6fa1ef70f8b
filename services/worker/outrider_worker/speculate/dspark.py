"""DSpark: DFlash's block, drawn from left to right with a correction, and scored by a head.

Knows: the order of the heads. Does not know: what they compute (model.draft.dspark), the block.

Source: DSpark (arXiv 2607.05147), sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from outrider_worker.model.draft.dspark import ConfidenceHead, MarkovHead
from outrider_worker.speculate.device import Chooser, Chosen, DraftBatch
from outrider_worker.speculate.dflash import BlockModel, DFlashDrafter


class DSparkDrafter(DFlashDrafter):
    """A DFlash whose drafts follow one another and tell how sure they are.

    Without a Markov head it draws as DFlash does; without a confidence head the chooser's
    confidence is the score, as everywhere else.
    """

    name = "dspark"

    def __init__(
        self,
        model: BlockModel,
        max_draft_tokens: int,
        markov: MarkovHead | None,
        confidence: ConfidenceHead | None,
    ) -> None:
        super().__init__(model, max_draft_tokens)
        self._markov, self._confidence = markov, confidence

    def _draw(self, hidden: Tensor, batch: DraftBatch, chooser: Chooser) -> list[Chosen]:
        """See DFlashDrafter; the first draft follows the anchor."""
        logits = self._logits(hidden)
        before = batch.history[batch.seats, (batch.known - 1).clamp(min=0)]
        state = self._markov.first_state(len(before)) if self._markov else None
        drawn: list[Chosen] = []
        for step in range(hidden.shape[1]):
            row, corrected, embedding = hidden[:, step], logits[:, step], None
            if self._markov is not None and state is not None:
                embedding = self._markov.embed(before)
                bias, state = self._markov.bias(row, embedding, state)
                corrected = corrected + bias
            chosen = chooser.choose(corrected, step)
            if self._confidence is not None:
                chosen = replace(chosen, confidence=self._confidence(row, embedding, step))
            drawn.append(chosen)
            before = chosen.token_ids
        return drawn
