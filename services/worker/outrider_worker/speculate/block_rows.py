"""The rows of a block behind the known text, and the pages it ends in.

A block is scratch: nobody reads its keys and values after the pass that wrote them. It may reach
further than the slots reserved for a request, so only the anchor's page is the request's own;
behind it come pages that belong to the seat and to this drafter alone. So a block never asks the
scheduler for room and never writes where another request may be.

Knows: the arithmetic of slots and pages. Does not know: what a row is made of.

Letters: n requests, N seats, P pages of the longest context, s rows of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.speculate.device import DraftBatch


def scratch_pages(block_rows: int) -> int:
    """Pages that a block of so many rows can reach behind the one that its first row is in."""
    return (block_rows + PAGE_TOKENS - 2) // PAGE_TOKENS


def lay_out_block(
    batch: DraftBatch, page_table: Tensor, scratch: Tensor, rows: int, mask_token_id: int
) -> Rows:
    """[anchor, mask, mask, …] at positions known − 1 … of every request.

    Args:
        page_table: [N + 1, P], the batch's own.
        scratch: [N + 1, scratch_pages(rows) or more] int64, pages of each seat.
        rows: s of each request.

    Returns n × s rows, a request's side by side. All rows of a block have its end as their length,
    so each sees the others; the table has one line for each request. Those of a request that may
    get no draft are padding.
    """
    live = (batch.known > 0) & (batch.limit > 0)
    place = torch.arange(rows, device=batch.known.device)
    anchor = (batch.known - 1).clamp(min=0)
    positions = torch.where(live[:, None], anchor[:, None] + place, 0)
    tokens = torch.full_like(positions, mask_token_id)
    tokens[:, 0] = batch.history[batch.seats, anchor]
    table = _with_scratch(page_table[batch.seats], scratch[batch.seats], anchor // PAGE_TOKENS)
    slots = table.gather(1, positions // PAGE_TOKENS) * PAGE_TOKENS + positions % PAGE_TOKENS
    request = torch.arange(positions.numel(), device=anchor.device) // rows
    return Rows(
        token_ids=tokens.flatten(),
        positions=positions.flatten(),
        slots=torch.where(live[:, None], slots, positions % PAGE_TOKENS).flatten(),
        sequence=request,
        lengths=torch.where(live, anchor + rows, 0)[request],
        page_table=table,
    )


def _with_scratch(table: Tensor, scratch: Tensor, last: Tensor) -> Tensor:
    """table [n, P] with scratch [n, S] behind column `last` [n] → [n, P + S]."""
    longer = torch.cat([table, torch.zeros_like(scratch)], dim=1)
    columns = last[:, None] + 1 + torch.arange(scratch.shape[1], device=last.device)
    return longer.scatter_(1, columns, scratch)
