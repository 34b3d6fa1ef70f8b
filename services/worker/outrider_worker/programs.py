"""What one step does on the device: tensors in, tensors out, no host in between.

    a round:  pick drafts → row table → target forward | sample → judge → commit
    then:     a prefill chunk → first tokens, and drafts for the round to come

Everything a round needs of the one before it lies in the seats. Each method is one piece of work
of a stream; none waits for the device, copies to the host or branches on a tensor.

Knows: the order of operations and their shapes. Does not know: requests, plans, how work is
launched or read (runner).

Letters: n requests of a round, b rows, W = longest draft + 1, m finished prompts, d next drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider_worker.graphs import Forwards, make_forwards
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.rows import RowLayout, lay_out
from outrider_worker.sampling import (
    SampledRows,
    SeatSampling,
    Stages,
    adjust,
    logprobs_of,
    sample,
)
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import DeviceDrafter, DeviceDrafts, DraftBatch
from outrider_worker.speculate.pick import chain_scores, pick
from outrider_worker.speculate.verify import Verifier

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Wanted:
    """What sampling has to do for a batch, as the host knows it.

    top_logprobs: alternatives reported for each token; None = no logprobs.
    """

    stages: Stages
    top_logprobs: int | None = None


@dataclass(frozen=True)
class PageInput:
    """Entries of the page table that change; [X] int64 each."""

    seats: Tensor
    columns: Tensor
    pages: Tensor


@dataclass(frozen=True)
class PickInput:
    """How drafts at hand are ranked; see speculate.pick."""

    survival: Tensor
    class_row: Tensor
    weight: Tensor


@dataclass(frozen=True)
class RoundInput:
    """A round over `seats` [n].

    rows: b. width: longest draft. verify_tokens: V. caps [n]: drafts verified at most.
    drafts [n, width], lengths [n]: the drafts to verify where the host knows them.
    picking: how to choose among drafts on the device; None = all that caps allow are verified.
    """

    seats: Tensor
    rows: int
    width: int
    verify_tokens: int
    caps: Tensor
    wanted: Wanted
    drafts: Tensor | None = None
    lengths: Tensor | None = None
    picking: PickInput | None = None
    uniform: bool = False


@dataclass(frozen=True)
class RoundForward:
    """A round whose logits are there and whose rows are not judged yet."""

    layout: RowLayout
    verified: Tensor
    """[n] drafts that got a row"""
    logits: Tensor
    """[b, V] float32"""


@dataclass(frozen=True)
class PrefillInput:
    """Chunks of known text: seats, starts, counts [c]; `rows` = Σ counts.

    completing: [m] indices of the chunks whose last row emits a token.
    """

    seats: Tensor
    starts: Tensor
    counts: Tensor
    rows: int
    completing: Tensor
    wanted: Wanted


@dataclass(frozen=True)
class DraftInput:
    """Drafts wanted for seats [r], at most `asks` [r] each, in tables of `tokens` columns."""

    seats: Tensor
    asks: Tensor
    tokens: int


@dataclass(frozen=True)
class SeatSize:
    """How much the device keeps: seats, tokens of a context and a draft, rows of one round."""

    seats: int
    max_context_tokens: int
    max_draft_tokens: int
    max_rows: int


@dataclass(frozen=True)
class Programs:
    """One model and everything it runs with; all on one device."""

    model: CausalLM
    forwards: Forwards
    pool: KvPool
    seats: SeatState
    sampling: SeatSampling
    verifier: Verifier
    drafter: DeviceDrafter | None = None
    processed_logprobs: bool = False
    """Logprobs behind penalties, bias, bans and mask, instead of the target's own."""

    @classmethod
    def over(
        cls,
        model: CausalLM,
        pool: KvPool,
        size: SeatSize,
        verifier: Verifier,
        drafter: DeviceDrafter | None = None,
        processed_logprobs: bool = False,
    ) -> Programs:
        """With empty seats of `size`, and forwards launched as the pool's device does it."""
        device = pool.keys[0].device
        state = SeatState.allocate(
            size.seats, size.max_context_tokens, size.max_draft_tokens, device
        )
        sampling = SeatSampling(size.seats, device)
        forwards = make_forwards(model, pool, state.page_table, size.max_rows)
        return cls(model, forwards, pool, state, sampling, verifier, drafter, processed_logprobs)

    def show_pages(self, change: PageInput) -> None:
        """Bring the page table up to date."""
        self.seats.write_pages(change.seats, change.columns, change.pages)

    def forward_round(self, order: RoundInput) -> RoundForward:
        """Pick the drafts, lay out the rows, run the target over them."""
        state = self.seats
        if order.drafts is not None and order.lengths is not None:
            state.write_drafts(order.seats, order.drafts, order.lengths)
        verified = self._picked(order)
        alive = state.room[order.seats] > 0
        layout = lay_out(
            state,
            order.seats,
            first=state.known[order.seats] - 1,
            counts=torch.where(alive, verified + 1, 0),
            rows=order.rows,
            uniform=order.uniform,
        )
        hidden = self.forwards(layout.rows, self.pool)
        return RoundForward(layout, verified, self.model.logits(hidden))

    def judge_round(self, order: RoundInput, run: RoundForward, masks: Tensor | None) -> Tensors:
        """Sample every row, judge the drafts, commit. masks: [n, W, ⌈V/32⌉] int32.

        Returns verified, accepted [n], emitted [n, W], and logprobs where they are wanted.
        """
        state, layout, width = self.seats, run.layout, order.width + 1
        mask = None if masks is None else layout.to_flat(masks)
        seen = self._seen(layout.rows.sequence, layout.rows.lengths)
        tokens, found = self._choose(run.logits, seen, order.wanted, mask)
        samples = layout.to_padded(tokens, width)
        drafts, known = state.drafts(order.seats, order.width), state.known[order.seats]
        verdict = self.verifier.verify(samples, drafts, run.verified, order.seats, known)
        state.advance(order.seats, verdict.emitted, verdict.accepted)
        return {
            "verified": run.verified,
            "accepted": verdict.accepted,
            "emitted": verdict.emitted,
            **{name: layout.to_padded(values, width) for name, values in found.items()},
        }

    def prefill(self, order: PrefillInput, masks: Tensor | None) -> Tensors:
        """Run chunks of known text; the completing ones emit a token. masks: [m, ⌈V/32⌉] int32.

        Returns first [m], and logprobs where they are wanted.
        """
        state = self.seats
        layout = lay_out(state, order.seats, order.starts, order.counts, order.rows)
        hidden = self.model.forward(layout.rows, self.pool)
        if not order.completing.shape[0]:
            return {}
        last = layout.last_rows(order.counts)[order.completing]
        seats = order.seats[order.completing]
        seen = self._seen(seats, layout.rows.lengths[last])
        tokens, found = self._choose(self.model.logits(hidden[last]), seen, order.wanted, masks)
        state.advance(seats, tokens[:, None], torch.zeros_like(tokens))
        return {"first": tokens, **{f"first_{name}": v[:, None] for name, v in found.items()}}

    def draft(self, order: DraftInput) -> Tensors:
        """Draft for the next round.

        Returns draft_ids [r, d], draft_len [r], draft_bins [r, d], and draft_asked [r]: what each
        could be asked for, by the room that only the device knows.
        """
        state, seats = self.seats, order.seats
        limit = torch.minimum(order.asks, state.room[seats] - 1).clamp(min=0)
        batch = DraftBatch(seats, state.history, state.known[seats], limit)
        drafts = self._propose(batch, order.tokens)
        state.write_drafts(seats, drafts.token_ids, drafts.lengths, drafts.bins)
        return {
            "draft_ids": drafts.token_ids,
            "draft_len": drafts.lengths,
            "draft_bins": drafts.bins,
            "draft_asked": limit,
        }

    def _propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """The drafter's drafts, cut before the first id that the target does not know.

        The host cuts those it sees (Draft.cut); these may be judged before it sees them.
        """
        assert self.drafter is not None, "drafts were ordered of a device without a drafter"
        drafts = self.drafter.propose(batch, tokens)
        known = (drafts.token_ids >= 0) & (drafts.token_ids < self.model.config.vocab_size)
        good = known.to(torch.int64).cumprod(dim=1).sum(dim=1)
        return replace(drafts, lengths=torch.minimum(drafts.lengths, good))

    def _picked(self, order: RoundInput) -> Tensor:
        """[n] drafts to verify of each request."""
        if order.lengths is not None:
            return order.lengths
        lengths = torch.minimum(self.seats.draft_len[order.seats], order.caps)
        if order.picking is None:
            return lengths
        picking, bins = order.picking, self.seats.draft_bins[order.seats, : order.width]
        scores = chain_scores(bins, lengths, picking.survival, picking.class_row, picking.weight)
        return pick(scores, lengths, order.verify_tokens)

    def _seen(self, seats: Tensor, known: Tensor) -> SampledRows:
        """Rows in `seats` that see `known` tokens each, and emit the one behind them."""
        state = self.seats
        index = known - state.prompt_tokens[seats]
        return SampledRows(seats, known, index, state.history, state.prompt_tokens)

    def _choose(
        self, logits: Tensor, seen: SampledRows, wanted: Wanted, mask: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        """The target's own token of each row [R], and logprobs where they are wanted."""
        stages = wanted.stages if mask is None else wanted.stages | Stages.MASK
        tokens = sample(logits, seen, self.sampling, stages, mask)
        if wanted.top_logprobs is None:
            return tokens, {}
        shown = logits
        if self.processed_logprobs:
            shown = adjust(logits, seen, self.sampling, stages, mask)
        found = logprobs_of(shown, tokens, wanted.top_logprobs)
        return tokens, {
            "logprob": found.logprob,
            "top_ids": found.top_ids,
            "top_logprobs": found.top_logprobs,
        }
