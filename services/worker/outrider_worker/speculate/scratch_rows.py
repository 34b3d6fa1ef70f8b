"""Rows of tokens that are only guessed, behind the known text.

Knows: the arithmetic of positions and slots. Does not know: what is run over the rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.speculate.device import DraftBatch


def scratch_rows(batch: DraftBatch, token_ids: Tensor, first: Tensor, alive: Tensor) -> Rows:
    """w rows of each request of a batch, side by side: n × w rows.

    Args:
        token_ids: [n, w] int64.
        first: [n] int64, position of each request's first row. Rows before position 0 are padding.
        alive: [n] bool; all rows of the others are padding.
    """
    assert batch.page_table is not None, "a drafter with keys and values needs the page table"
    positions = first[:, None] + torch.arange(token_ids.shape[1], device=first.device)
    rows = Rows(
        token_ids=token_ids.flatten(),
        positions=positions.flatten(),
        slots=torch.zeros_like(token_ids).flatten(),
        sequence=batch.seats[:, None].expand_as(token_ids).flatten(),
        lengths=(positions + 1).flatten(),
        page_table=batch.page_table,
    )
    return placed(rows, (alive[:, None] & (positions >= 0)).flatten())


def shifted_rows(rows: Rows, places: int) -> Rows:
    """The same rows, each so many positions earlier; those that would be before 0 are padding."""
    if places == 0:
        return rows
    alive = rows.lengths > places
    earlier = replace(rows, positions=rows.positions - places, lengths=rows.lengths - places)
    return placed(earlier, alive)


def placed(rows: Rows, alive: Tensor) -> Rows:
    """The rows in the slots of their positions; padding where not `alive` [R]."""
    position = torch.where(alive, rows.positions, 0)
    page = rows.page_table[rows.sequence, position // PAGE_TOKENS]
    return replace(
        rows,
        positions=position,
        slots=torch.where(alive, page * PAGE_TOKENS + position % PAGE_TOKENS, 0),
        lengths=torch.where(alive, rows.lengths, 0),
    )
