"""The device's parts, and what several programs do with them alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.feeding import Feeding
from outrider_worker.graphs import Forwards
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.programs.inputs import Tensors, Wanted
from outrider_worker.sampling import RowSampling, SampledRows, SeatSampling, logprobs_of
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import DeviceDrafter
from outrider_worker.speculate.verify import Verifier


@dataclass(frozen=True)
class Parts:
    """One model and everything it runs with; all on one device."""

    model: CausalLM
    forwards: Forwards
    pool: KvPool
    seats: SeatState
    sampling: SeatSampling
    verifier: Verifier
    drafters: Mapping[str, DeviceDrafter]
    """By name; at most one of them has a state."""
    feeding: Feeding | None = None
    """Of the one that has a state."""
    processed_logprobs: bool = False
    """Logprobs behind penalties, bias, bans and mask, instead of the target's own."""

    def prefill_forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Hidden states and features of a prefill's rows: their number is never a graph's."""
        boundaries = self.feeding.boundaries if self.feeding else ()
        return self.model.forward_with_features(rows, self.pool, boundaries)

    def rows_sampling(
        self, seats: Tensor, known: Tensor, wanted: Wanted, mask: Tensor | None = None
    ) -> RowSampling:
        """How rows in `seats` [R] that see `known` [R] tokens come to the token behind them."""
        state = self.seats
        index = known - state.prompt_tokens[seats]
        seen = SampledRows(seats, known, index, state.history, state.prompt_tokens)
        return RowSampling(seen, self.sampling, wanted.stages, mask)

    def logprobs(
        self, logits: Tensor, sampling: RowSampling, tokens: Tensor, wanted: Wanted
    ) -> Tensors:
        """Logprobs of the emitted token of each row [R], where they are wanted."""
        if wanted.top_logprobs is None:
            return {}
        shown = sampling.adjust(logits) if self.processed_logprobs else logits
        found = logprobs_of(shown, tokens, wanted.top_logprobs)
        return {
            "logprob": found.logprob,
            "top_ids": found.top_ids,
            "top_logprobs": found.top_logprobs,
        }
