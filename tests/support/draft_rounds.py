"""Rounds of a target and a device drafter without an engine: what the engine asks of a drafter.

Sampler match over real seats, pages and options; a drafter is fed up to the anchor before it
proposes, and misses whatever rounds do not ask it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model import CausalLM
from outrider_worker.rows import lay_out
from outrider_worker.sampling import RowSampling, SampledRows, SeatSampling, stages_of
from outrider_worker.seats import SeatState
from outrider_worker.speculate.choosers import SamplerMatchChooser
from outrider_worker.speculate.device import DraftBatch, FedRows, StatefulDrafter

CONTEXT_TOKENS = 640
_PAGES_EACH = CONTEXT_TOKENS // PAGE_TOKENS


class DraftRounds:
    """Requests in seats of their own, one prompt each, all with the same options.

    drafter: needs no features.
    """

    def __init__(
        self,
        target: CausalLM,
        drafter: StatefulDrafter,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
    ) -> None:
        params = params or SamplingParams()
        seats, self.pages = len(prompts), 1 + len(prompts) * _PAGES_EACH
        self.state = SeatState.allocate(seats, CONTEXT_TOKENS, 8)
        self.seats = torch.arange(seats)
        self.fed = torch.zeros(seats, dtype=torch.int64)
        self.counts = [0, 0]
        """Drafts proposed and accepted."""
        self._target, self._drafter = target, drafter
        self._pool = KvPool.of_pages(target.config, self.pages, torch.float32)
        self._table, self._stages = SeatSampling(seats), stages_of(params)
        drafter.allocate(seats, self.pages)
        pages = 1 + torch.randperm(seats * _PAGES_EACH, generator=torch.Generator().manual_seed(5))
        self.state.page_table[:seats, :_PAGES_EACH] = pages.view(seats, -1)
        for seat, prompt in enumerate(prompts):
            room = CONTEXT_TOKENS - len(prompt)
            self.state.put(seat, torch.tensor(prompt), len(prompt), room)
            self._table.put(seat, params, 0, frozenset())
        self._forward(torch.zeros_like(self.fed), self.known - 1)

    @property
    def known(self) -> Tensor:
        """[n] tokens of each request."""
        return self.state.known[self.seats]

    def text(self, seat: int) -> list[int]:
        """All that is known of a request."""
        return self.state.history[seat, : int(self.state.known[seat])].tolist()

    def feed(self, upto: Tensor | None = None) -> None:
        """Feed the drafter positions fed … upto − 1 of every request; all before the anchor."""
        end = self.known - 1 if upto is None else upto
        counts = end - self.fed
        layout = lay_out(self.state, self.seats, self.fed, counts, int(counts.sum()) + 2)
        rows = layout.rows
        following = self.state.history[rows.sequence, rows.positions + 1]
        next_ids = following.masked_fill(rows.lengths == 0, 0)
        last = layout.last_rows(counts)
        self._drafter.feed(FedRows(rows, next_ids, None, self.seats, counts, last))
        self.fed = end

    def batch(self, limit: Tensor) -> DraftBatch:
        """What a drafter is asked with: at most `limit` [n] drafts for each request."""
        chooser = SamplerMatchChooser(self._sampling(self.seats, self.known))
        return DraftBatch(
            self.seats, self.state.history, self.known, limit, self.state.page_table, chooser
        )

    def round(self, tokens: int) -> None:
        """Draft (unless `tokens` is 0), run the target, commit."""
        known, lengths = self.known, torch.zeros_like(self.fed)
        drafts = torch.zeros(len(self.seats), tokens, dtype=torch.int64)
        if tokens:
            self.feed()
            proposed = self._drafter.propose(self.batch(torch.full_like(known, tokens)), tokens)
            drafts, lengths = proposed.token_ids, proposed.lengths
            self.state.write_drafts(self.seats, drafts, lengths)
        samples = self._forward(known - 1, lengths + 1).view(len(self.seats), tokens + 1)
        accepted = (samples[:, :tokens] == drafts).to(torch.int64).cumprod(1).sum(1)
        self.counts = [self.counts[0] + drafts.numel(), self.counts[1] + int(accepted.sum())]
        self.state.advance(self.seats, samples, accepted)

    def _forward(self, first: Tensor, counts: Tensor) -> Tensor:
        """[rows] the target's own token of each row."""
        rows = lay_out(self.state, self.seats, first, counts, int(counts.sum())).rows
        logits = self._target.logits(self._target.forward(rows, self._pool))
        return self._sampling(rows.sequence, rows.lengths).sample(logits)

    def _sampling(self, seats: Tensor, known: Tensor) -> RowSampling:
        state = self.state
        index = known - state.prompt_tokens[seats]
        rows = SampledRows(seats, known, index, state.history, state.prompt_tokens)
        return RowSampling(rows, self._table, self._stages)
