"""What shapes the tokens of some rows, in one value: whose they are, what is asked of them.

Knows: the chain, for rows whose logits come from anywhere: the target or a drafter. Does not know:
which rows a round has, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider_worker.sampling.chain import adjust, sample
from outrider_worker.sampling.laws import law
from outrider_worker.sampling.rows import SampledRows
from outrider_worker.sampling.seats import SeatSampling
from outrider_worker.sampling.stages import ADJUSTING, Stages


@dataclass(frozen=True)
class RowSampling:
    """R rows, and how they come to their tokens."""

    rows: SampledRows
    table: SeatSampling
    asked: Stages
    """Joined over the rows' requests; MASK is added where there is one."""
    mask: Tensor | None = None
    """[R, ⌈V/32⌉] int32, bit set = allowed."""

    @property
    def stages(self) -> Stages:
        plain = self.asked & ~Stages.MASK
        return plain if self.mask is None else plain | Stages.MASK

    @property
    def draws(self) -> Tensor:
        """[R] bool, False for greedy rows."""
        drawn: Tensor = self.table.temperature[self.rows.seat] > 0
        return drawn

    def take(self, rows: Tensor | slice) -> RowSampling:
        """Some of the rows."""
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, rows=self.rows.take(rows), mask=mask)

    def ahead(self, tokens: int) -> RowSampling:
        """The rows so many tokens further on in the same lines; a mask is of one place and goes."""
        return replace(self, rows=self.rows.ahead(tokens), mask=None)

    def adjust(self, logits: Tensor) -> Tensor:
        """logits [R, V] float32 behind penalties, biases, bans and mask; see `chain.adjust`."""
        return adjust(logits, self.rows, self.table, self.stages, self.mask)

    def sample(self, logits: Tensor) -> Tensor:
        """logits [R, V] float32 → tokens [R] int64, with the noise of the rows' places."""
        return sample(logits, self.rows, self.table, self.stages, self.mask)

    def sample_adjusted(self, adjusted: Tensor) -> Tensor:
        """The same from what `adjust` gave."""
        return sample(adjusted, self.rows, self.table, self.stages & ~ADJUSTING)

    def law(self, logits: Tensor) -> Tensor:
        """logits [R, V] float32 → [R, V] float64, the law that `sample` draws from; see `law`."""
        return self.law_adjusted(self.adjust(logits))

    def law_adjusted(self, adjusted: Tensor) -> Tensor:
        """The same from what `adjust` gave."""
        columns = self.table.draw_columns(self.rows.seat, self.rows.index)
        return law(adjusted, columns, self.stages)

    def beliefs(self, adjusted: Tensor) -> Tensor:
        """[R, V] float32 softmax of what `adjust` gave, at each row's temperature, unfiltered.

        Greedy rows, whose law is a point, show what they believe at temperature 1.
        """
        temperature = self.table.temperature[self.rows.seat]
        divisor = torch.where(temperature > 0, temperature, 1.0)
        return (adjusted / divisor[:, None]).softmax(-1)
