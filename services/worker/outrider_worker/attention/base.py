"""What one forward looks like to attention: the row table and the backend seam.

Knows: rows, page tables, the shapes that cross the seam. Does not know: how any backend
computes, who owns which page, what a request is, or where the rows came from.

Shapes: R rows, S lines of the page table, P pages of its longest line, Hq query heads, Dk and Dv
the sizes of a key and of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.engine.types import NULL_PAGE
from outrider_worker.kv import PAGE_TOKENS, KvPool


@dataclass(frozen=True)
class Rows:
    """The row table of one forward: one row is one token at one position of one sequence.

    Rows of a sequence are contiguous and in position order; how many there are may differ from
    sequence to sequence (1 to K+1 in a verify round, up to the chunk size in prefill). Sequences
    stand in any order, and lines of the page table that no row names are never read.
    All K/V of a forward are written before attention runs, so a chain of drafts needs no mask:
    a row sees the first `lengths` keys of its sequence, itself included.
    """

    token_ids: Tensor
    """[R] int64, the token fed at this row."""
    positions: Tensor
    """[R] int64, absolute position in the sequence."""
    slots: Tensor
    """[R] int64, where the row's K/V go: page × PAGE_TOKENS + offset; padding: the null page."""
    sequence: Tensor
    """[R] int64, line of `page_table`: the request's seat."""
    lengths: Tensor
    """[R] int64, keys visible to the row: position + 1, or 0 for a padding row."""
    page_table: Tensor
    """[S, P] int64, page ids in position order, filled up with the null page."""
    parents: Tensor | None = None
    """[R] int64, the row before in the draft tree. None for chains: the row before."""
    tail_mask: Tensor | None = None
    """Extra visibility among the rows of one forward, for trees. None for chains."""

    def __post_init__(self) -> None:
        shape = self.token_ids.shape
        columns = (self.positions, self.slots, self.sequence, self.lengths)
        if self.token_ids.dim() != 1 or any(column.shape != shape for column in columns):
            raise ValueError("the columns of a row table are one-dimensional and of one length")
        if self.page_table.dim() != 2:
            raise ValueError("page_table is [sequences, pages]")

    @property
    def count(self) -> int:
        """R, padding rows included."""
        return self.token_ids.shape[0]

    def part(self, which: slice) -> Rows:
        """Some of the rows, as a chain of their own. Raises ValueError for trees."""
        if self.parents is not None or self.tail_mask is not None:
            raise ValueError("rows of a tree cannot be taken apart")
        return Rows(
            token_ids=self.token_ids[which],
            positions=self.positions[which],
            slots=self.slots[which],
            sequence=self.sequence[which],
            lengths=self.lengths[which],
            page_table=self.page_table,
        )

    def contiguous(self) -> Rows:
        """The same table with columns that a kernel can read as arrays: views may repeat entries.

        The page table stays what it is, strided or not.
        """
        columns = ("token_ids", "positions", "slots", "sequence", "lengths")
        strided = [name for name in columns if not getattr(self, name).is_contiguous()]
        return replace(self, **{name: getattr(self, name).contiguous() for name in strided})

    def padded_to(self, count: int) -> Rows:
        """The same table with padding rows at its end, at least `count` rows long."""
        missing = count - self.count
        if missing <= 0:
            return self

        def column(values: Tensor, filler: int = 0) -> Tensor:
            return pad(values, (0, missing), value=filler)

        return Rows(
            token_ids=column(self.token_ids),
            positions=column(self.positions),
            slots=column(self.slots, NULL_PAGE * PAGE_TOKENS),
            sequence=column(self.sequence),
            lengths=column(self.lengths),
            page_table=self.page_table,
            parents=None if self.parents is None else column(self.parents),
            tail_mask=self.tail_mask,
        )


def require_chains(rows: Rows, window: int | None) -> None:
    """Raises UnsupportedRows for what backends without a tail mask cannot do, by its reason."""
    if rows.tail_mask is not None or rows.parents is not None:
        raise UnsupportedRows("this attention serves chains only: no parents, no tail mask")
    if window is not None and window < 1:
        raise UnsupportedRows(f"a window of {window} keys leaves a row nothing to see")


class AttentionPlan(Protocol):
    """What a backend derived from one row table and reuses in every layer of that forward."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Causal attention of every row over its own sequence.

        q: [R, Hq, Dk], rotated, in the pool's dtype. Returns [R, Hq, Dv]; what it holds for
        padding rows is finite and means nothing.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention over the paged pool."""

    def plan(
        self,
        rows: Rows,
        pool: KvPool,
        query_heads: int,
        scale: float | None = None,
        window: int | None = None,
    ) -> AttentionPlan:
        """Work out, once per forward, everything that does not depend on the layer.

        scale: factor on q·k; None for Dk^−½. window: how many keys a row sees at most, its own
        among them (the row at position p sees p − window + 1 … p); None for all. Models whose
        layers differ in either make one plan per kind.
        The plan reads `pool` when it attends, so K/V must have been written by then.
        Raises UnsupportedRows for a tree (or anything else) this backend cannot honour.
        """
        ...


class UnsupportedRows(ValueError):
    """A row table asks for something the chosen attention backend cannot do."""
