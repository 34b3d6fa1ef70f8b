"""A prefill: chunks of known text through the target, and through a drafter behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.feeding import FedChunks
from outrider_worker.programs.inputs import PrefillInput, Tensors
from outrider_worker.programs.parts import Parts
from outrider_worker.rows import RowLayout, lay_out


def prefill(parts: Parts, order: PrefillInput, masks: Tensor | None) -> Tensors:
    """Run chunks of known text; the completing ones emit a token. masks: [m, ⌈V/32⌉] int32.

    Returns first [m], and logprobs where they are wanted.
    """
    layout = lay_out(parts.seats, order.seats, order.starts, order.counts, order.rows)
    hidden, features = parts.prefill_forward(layout.rows)
    first = _first_tokens(parts, order, layout, hidden, masks)
    if parts.feeding is not None and order.fed_rows:
        chunks = FedChunks(order.seats, order.starts, order.counts, order.fed_rows, order.fed)
        parts.feeding.feed_chunks(parts.seats, layout, features, chunks)
    return first


def _first_tokens(
    parts: Parts, order: PrefillInput, layout: RowLayout, hidden: Tensor, masks: Tensor | None
) -> Tensors:
    """What the completing chunks emit, and commit."""
    if not order.completing.shape[0]:
        return {}
    last = layout.last_rows(order.counts)[order.completing]
    seats = order.seats[order.completing]
    sampling = parts.rows_sampling(seats, layout.rows.lengths[last], order.wanted, masks)
    logits = parts.model.logits(hidden[last])
    tokens = sampling.sample(logits)
    found = parts.logprobs(logits, sampling, tokens, order.wanted)
    parts.seats.advance(seats, tokens[:, None], torch.zeros_like(tokens))
    return {"first": tokens, **{f"first_{name}": v[:, None] for name, v in found.items()}}
