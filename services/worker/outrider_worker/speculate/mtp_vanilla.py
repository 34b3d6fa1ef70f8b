"""Several modules of multi-token prediction, each drafting one token (DeepSeek-V3, 2024, section
2.2, in the form that TensorRT-LLM serves).

Module m sees the pairs (token i + 1, feature i) as module 1 does, shifted by m − 1 places: pair i
lies at position i − m + 1 of its own K/V. So in a round, where known − 1 pairs are committed, its
positions up to known − 1 − m are made of those, and the m − 1 behind them of drafts: the pairs
(draft j, what module j's last row gave), j = 1 … m − 1. The last of them yields draft m.

A committed pair's key and value depend on nothing but the pair. So each is fed to every module
once, when it is committed, and a round runs only the pairs that are made of drafts; nothing but
the first module's last hidden state need be kept by seat.

A page of module m thus depends on the m tokens behind it: whoever shares cached pages must
recompute at least that many tokens at their end.

Knows: which pairs each module runs when. Does not know: the modules' insides, verifiers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_worker.model.draft.base import DraftHead
from outrider_worker.speculate.device import Chosen, DeviceDrafts, DraftBatch, FedRows
from outrider_worker.speculate.drawn import drafts_of
from outrider_worker.speculate.pairs import PairDrafter
from outrider_worker.speculate.scratch_rows import scratch_rows, shifted_rows


class VanillaMtpDrafter(PairDrafter):
    """At most as many drafts as there are modules (a StatefulDrafter).

    Modules share a configuration and a pool, of which module m has layer m − 1.
    """

    def __init__(
        self,
        modules: Sequence[DraftHead],
        name: str,
        max_draft_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """modules: the first one first. dtype, device: theirs."""
        most = min(max_draft_tokens, len(modules))
        super().__init__(modules[0], name, most, dtype, device, lookahead_tokens=len(modules))
        self.modules = tuple(modules)

    @torch.inference_mode()
    def feed(self, fed: FedRows) -> None:
        """See StatefulDrafter: every module takes in the pairs, at its own places."""
        if not fed.rows.count:
            return
        for place, module in enumerate(self.modules):
            hidden, rows = module.fuse(fed.wanted_features), shifted_rows(fed.rows, place)
            out = module.extend(fed.next_ids, hidden, rows, self.pool)
            if place == 0:
                self._keep_last(out, fed)

    @torch.inference_mode()
    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter.propose."""
        assert batch.chooser is not None, "a drafter that has logits needs a chooser"
        lengths = self._lengths(batch, tokens)
        outs, drawn = [self._carried[batch.seats]], list[Chosen]()
        for step, module in enumerate(self.modules[: self._steps(tokens)]):
            if step:
                outs.append(self._last_row(module, batch, drawn, outs, alive=step < lengths))
            drawn.append(batch.chooser.choose(module.logits(outs[-1]), step))
        return drafts_of(drawn, lengths, tokens)

    def _last_row(
        self,
        module: DraftHead,
        batch: DraftBatch,
        drawn: Sequence[Chosen],
        outs: Sequence[Tensor],
        alive: Tensor,
    ) -> Tensor:
        """[n, d]: a module's hidden state over the pairs of all drafts up to now."""
        pairs = len(drawn)
        token_ids = torch.stack([each.token_ids for each in drawn], dim=1)
        rows = scratch_rows(batch, token_ids, batch.known - 1 - pairs, alive)
        hidden = torch.stack(list(outs), dim=1).flatten(0, 1)
        out = module.extend(rows.token_ids, hidden, rows, self.pool)
        return out[pairs - 1 :: pairs]
