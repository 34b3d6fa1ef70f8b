"""Between two rounds: a drafter is fed what is new, and drafts for the round to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.programs.inputs import DraftInput, FeedInput, Tensors
from outrider_worker.programs.parts import Parts
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch


def feed(parts: Parts, order: FeedInput) -> None:
    """Feed the drafter that has a state."""
    assert parts.feeding is not None, "a feed was ordered of a device whose drafters have no state"
    parts.feeding.feed(parts.seats, order.seats, order.rows)


def draft(parts: Parts, orders: Sequence[DraftInput]) -> Tensors:
    """Draft for the next round, by one drafter after the other.

    Returns draft_ids [r, d], draft_len [r], draft_bins [r, d], and draft_asked [r]: what each
    could be asked for, by the room that only the device knows. r counts through all orders.
    """
    made = [_draft(parts, order) for order in orders]
    width = max(order.tokens for order in orders)
    for order, tensors in zip(orders, made, strict=True):
        for name in ("draft_ids", "draft_bins"):
            tensors[name] = pad(tensors[name], (0, width - order.tokens))
    return {name: torch.cat([tensors[name] for tensors in made]) for name in made[0]}


def _draft(parts: Parts, order: DraftInput) -> Tensors:
    state, seats = parts.seats, order.seats
    drafter = parts.drafters[order.drafter]
    limit = torch.minimum(order.asks, state.room[seats] - 1).clamp(min=0)
    if parts.feeding is not None and drafter is parts.feeding.drafter:
        limit = torch.where(parts.feeding.ready(state, seats), limit, 0)
    known = state.known[seats]
    batch = DraftBatch(
        seats=seats,
        history=state.history,
        known=known,
        limit=limit,
        page_table=state.page_table,
        chooser=parts.verifier.chooser(parts.rows_sampling(seats, known, order.wanted)),
    )
    drafts = drafter.propose(batch, order.tokens)
    lengths = torch.minimum(drafts.lengths, _good(drafts, parts.model.config.vocab_size))
    drafts = replace(drafts, lengths=lengths)
    state.write_drafts(seats, drafts.token_ids, drafts.lengths, drafts.bins)
    return {
        "draft_ids": drafts.token_ids,
        "draft_len": drafts.lengths,
        "draft_bins": drafts.bins,
        "draft_asked": limit,
    }


def _good(drafts: DeviceDrafts, vocab_size: int) -> Tensor:
    """[n] drafts before the first id that the target does not know.

    The host cuts those it sees (Draft.cut); these may be judged before it sees them.
    """
    known = (drafts.token_ids >= 0) & (drafts.token_ids < vocab_size)
    return known.to(torch.int64).cumprod(dim=1).sum(dim=1)
