"""A round: pick the drafts, run the target over them, sample, judge, commit."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.programs.inputs import RoundForward, RoundInput, Tensors
from outrider_worker.programs.parts import Parts
from outrider_worker.rows import lay_out
from outrider_worker.speculate.pick import chain_scores, pick
from outrider_worker.speculate.verify import JudgedRows


def forward_round(parts: Parts, order: RoundInput) -> RoundForward:
    """Pick the drafts, lay out the rows, run the target over them."""
    state = parts.seats
    if order.drafts is not None and order.lengths is not None:
        state.write_drafts(order.seats, order.drafts, order.lengths)
    if order.given is not None:
        parts.verifier.given(order.given)
    verified = _picked(parts, order)
    alive = state.room[order.seats] > 0
    layout = lay_out(
        state,
        order.seats,
        first=state.known[order.seats] - 1,
        counts=torch.where(alive, verified + 1, 0),
        rows=order.rows,
        uniform=order.uniform,
    )
    hidden, features = parts.forwards(layout.rows, parts.pool)
    if parts.feeding is not None:
        parts.feeding.keep(layout, features)
    return RoundForward(layout, verified, parts.model.logits(hidden))


def judge_round(
    parts: Parts, order: RoundInput, run: RoundForward, masks: Tensor | None
) -> Tensors:
    """Sample every row, judge the drafts, commit. masks: [n, W, ⌈V/32⌉] int32.

    Returns verified, accepted [n], emitted [n, W], relaxed [n] of a verifier that has such, and
    logprobs where they are wanted.
    """
    state, layout, width = parts.seats, run.layout, order.width + 1
    mask = None if masks is None else layout.to_flat(masks)
    rows = layout.rows
    sampling = parts.rows_sampling(rows.sequence, rows.lengths, order.wanted, mask)
    drafts, known = state.drafts(order.seats, order.width), state.known[order.seats]
    verdict = parts.verifier.verify(
        JudgedRows(run.logits, sampling, layout, drafts, run.verified, order.seats, known)
    )
    emitted = layout.to_flat(verdict.emitted)
    found = parts.logprobs(run.logits, sampling, emitted, order.wanted)
    state.advance(order.seats, verdict.emitted, verdict.accepted)
    return {
        "verified": run.verified,
        "accepted": verdict.accepted,
        "emitted": verdict.emitted,
        **({} if verdict.relaxed is None else {"relaxed": verdict.relaxed}),
        **{name: layout.to_padded(values, width) for name, values in found.items()},
    }


def _picked(parts: Parts, order: RoundInput) -> Tensor:
    """[n] drafts to verify of each request."""
    if order.lengths is not None:
        return order.lengths
    lengths = torch.minimum(parts.seats.draft_len[order.seats], order.caps)
    if order.picking is None:
        return lengths
    picking, bins = order.picking, parts.seats.draft_bins[order.seats, : order.width]
    scores = chain_scores(bins, lengths, picking.survival, picking.class_row, picking.weight)
    return pick(scores, lengths, order.verify_tokens)
