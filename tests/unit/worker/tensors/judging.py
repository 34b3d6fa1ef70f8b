"""Rounds to judge, built from logits and drafts, for tests of verifiers and choosers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams
from outrider_worker.rows import lay_out
from outrider_worker.sampling import RowSampling, SampledRows, SeatSampling, Stages, stages_of
from outrider_worker.seats import SeatState
from outrider_worker.speculate.verify import JudgedRows

END_IDS = frozenset({1})


@dataclass(frozen=True)
class Table:
    """Requests 0…n−1 in seats of the same number, all of them between two rounds."""

    state: SeatState
    sampling: SeatSampling
    stages: Stages

    @classmethod
    def of(cls, params: Sequence[SamplingParams], texts: Sequence[Sequence[int]]) -> "Table":
        """A request for each text, which is its prompt."""
        longest = max(map(len, texts))
        table = cls(SeatState.allocate(len(texts), longest + 40, 8), SeatSampling(len(texts)),
                    Stages.NONE)  # fmt: skip
        stages = Stages.NONE
        for seat, (each, text) in enumerate(zip(params, texts, strict=True)):
            table.state.put(seat, torch.tensor(text), prompt_tokens=len(text), room=99)
            table.sampling.put(seat, each, 0, END_IDS)
            stages |= stages_of(each)
        return cls(table.state, table.sampling, stages)

    @classmethod
    def many(cls, params: SamplingParams, count: int) -> "Table":
        """Requests that differ in their seeds alone, each with a prompt of one token. Options that
        are lists (biases, bad words, minimum length) are the first one's alone."""
        table = cls(SeatState.allocate(count, 32, 8), SeatSampling(count), stages_of(params))
        table.sampling.put(0, params, 0, END_IDS)
        for columns in (table.sampling._floats, table.sampling._ints):
            columns[:] = columns[:, :1].clone()
        table.sampling.seed[:] = torch.arange(count + 1) + params.seed
        for column in (table.state.known, table.state.prompt_tokens, table.state.room):
            column[:-1] = 1
        return table

    @property
    def seats(self) -> Tensor:
        return torch.arange(self.state.seats)

    def next_rows(self) -> RowSampling:
        """Of each request's next token: what a chooser is made of."""
        known = self.state.known[:-1]
        return self._sampling(self.seats, known)

    def judged(
        self,
        logits: Tensor,
        drafts: Tensor,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> JudgedRows:
        """The round: logits [n, K+1, V], drafts [n, K], lengths [n] (default K)."""
        state, (count, width) = self.state, drafts.shape
        if lengths is None:
            lengths = torch.full((count,), width)
        state.write_drafts(self.seats, drafts, lengths)
        known = state.known[:-1].clone()
        rows = int((lengths + 1).sum())
        layout = lay_out(state, self.seats, known - 1, lengths + 1, rows)
        sampling = self._sampling(layout.rows.sequence, layout.rows.lengths)
        flat_mask = None if mask is None else layout.to_flat(mask)
        return JudgedRows(
            logits=layout.to_flat(logits),
            sampling=RowSampling(sampling.rows, self.sampling, self.stages, flat_mask),
            layout=layout,
            drafts=drafts,
            lengths=lengths,
            seats=self.seats,
            known=known,
        )

    def _sampling(self, seats: Tensor, known: Tensor) -> RowSampling:
        state = self.state
        index = known - state.prompt_tokens[seats]
        rows = SampledRows(seats, known, index, state.history, state.prompt_tokens)
        return RowSampling(rows, self.sampling, self.stages)


def certain(tokens: Tensor, vocabulary: int) -> Tensor:
    """[…] → […, V] logits of which a greedy request takes these tokens."""
    return torch.nn.functional.one_hot(tokens, vocabulary).float() * 9


def chi_square(counts: Tensor, law: Tensor) -> float:
    """How far counts [C] are from a law [C], in standard deviations of the statistic."""
    expected = law * counts.sum()
    used = expected > 0
    assert not counts[~used].any(), "what has no probability was drawn"
    statistic = ((counts[used] - expected[used]) ** 2 / expected[used]).sum()
    freedom = int(used.sum()) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5) if freedom else 0.0
