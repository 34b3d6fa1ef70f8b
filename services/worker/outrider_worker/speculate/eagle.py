"""One head drafts token by token from the target's hidden state: MTP with one module, and EAGLE-3.

    feed:     the pairs (token i + 1, feature i) at positions i that were committed
    propose:  logits of the last pair → draft 1;  the pair (draft k, the head's own hidden state)
              at position known − 2 + k → draft k + 1

What a round proposed was made from the head's own hidden states. The next feed writes over all of
it that was accepted, with the target's; engines that left it lost a tenth of their acceptance.

Knows: which pairs are run when. Does not know: heads, verifiers.
"""

from __future__ import annotations

import torch

from outrider_worker.model.draft.base import DraftHead
from outrider_worker.speculate.device import Chosen, DeviceDrafts, DraftBatch, FedRows
from outrider_worker.speculate.drawn import drafts_of
from outrider_worker.speculate.pairs import PairDrafter
from outrider_worker.speculate.scratch_rows import scratch_rows


class EagleDrafter(PairDrafter):
    """d − 1 forwards of one head for d drafts (a StatefulDrafter)."""

    def __init__(
        self,
        head: DraftHead,
        name: str,
        max_draft_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """dtype, device: the head's; what is kept of a request is kept in them."""
        super().__init__(head, name, max_draft_tokens, dtype, device)
        self.head = head

    @torch.inference_mode()
    def feed(self, fed: FedRows) -> None:
        """See StatefulDrafter."""
        if fed.rows.count:
            hidden = self.head.fuse(fed.wanted_features)
            self._keep_last(self.head.extend(fed.next_ids, hidden, fed.rows, self.pool), fed)

    @torch.inference_mode()
    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter.propose."""
        assert batch.chooser is not None, "a drafter that has logits needs a chooser"
        lengths = self._lengths(batch, tokens)
        hidden, drawn = self._carried[batch.seats], list[Chosen]()
        for step in range(self._steps(tokens)):
            if step:
                fed_back, first = drawn[-1].token_ids[:, None], batch.known - 2 + step
                rows = scratch_rows(batch, fed_back, first, alive=step < lengths)
                hidden = self.head.extend(rows.token_ids, hidden, rows, self.pool)
            drawn.append(batch.chooser.choose(self.head.logits(hidden), step))
        return drafts_of(drawn, lengths, tokens)
