"""Attention on CPUs by a kernel of our own: the "rows" backend.

Every row is computed by itself, page by page in position order (kernels.pages), so its bits do not
depend on company, chunking or page layout; there is nothing to gather and no shape to keep. Large
forwards are shared out over torch's threads.

Knows: how row tables are cut into units of work. Does not know: how a unit is computed, models,
who owns a page.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_worker.attention.base import AttentionPlan, Rows, UnsupportedRows, require_chains
from outrider_worker.attention.blocks import BlockAttention
from outrider_worker.kernels.attention_job import ATTEND, JOB, UNIT_COLUMNS
from outrider_worker.kernels.elementwise import LANES
from outrider_worker.kernels.team import Team, find_team
from outrider_worker.kv import PAGE_TOKENS, KvPool

_UNIT_VECTORS = 24
"""Query vectors of a unit at most: with a page they fit a core's first cache."""

_SERIAL_WORK = 128
"""Vectors times pages up to which one thread is done before others have woken: some 50 µs."""

_NO_WINDOW = 1 << 40

Ints = NDArray[np.int64]


class RowAttention:
    """Row-wise attention over the paged pool, in float32 (an AttentionBackend)."""

    def __init__(self) -> None:
        """Raises UnsupportedRows where torch brings no team of threads."""
        team = find_team()
        if team is None:
            raise UnsupportedRows("this build of torch offers no OpenMP threads to attend with")
        self._team = team
        self._blocks = BlockAttention()

    def plan(
        self,
        rows: Rows,
        pool: KvPool,
        query_heads: int,
        scale: float | None = None,
        window: int | None = None,
    ) -> AttentionPlan:
        """Units of work and their shares. Pools that the kernel does not read go to "blocks"."""
        require_chains(rows, window)
        if pool.values_in_keys or pool.value_dim % LANES or pool.dtype is not torch.float32:
            return self._blocks.plan(rows, pool, query_heads, scale, window)
        return RowPlan(self._team, rows.contiguous(), pool, query_heads, scale, window)


class RowPlan:
    """One forward's job, the same in every layer but for four addresses."""

    def __init__(
        self,
        team: Team,
        rows: Rows,
        pool: KvPool,
        query_heads: int,
        scale: float | None,
        window: int | None,
    ) -> None:
        self._team, self._pool = team, pool
        group = query_heads // pool.kv_heads
        self._lengths, self._table = rows.lengths.numpy(), rows.page_table.contiguous()
        pieces = _pieces(rows.sequence.numpy(), max(1, _UNIT_VECTORS // group))
        work = _work(pieces, self._lengths, window) * group
        total = int(work.sum()) * pool.kv_heads
        self._threads = 1 if total <= _SERIAL_WORK else torch.get_num_threads()
        self._units = _units(pieces, rows.sequence.numpy(), work, pool.kv_heads, self._threads)
        self._out_shape = (rows.count, query_heads, pool.value_dim)
        self._job = self._new_job(rows, query_heads, scale, window)
        self.job_address = self._job.ctypes.data

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See AttentionPlan.attend. Zeros for padding rows."""
        q = q.contiguous()
        out = q.new_empty(self._out_shape)
        job = self._job
        job["q"], job["out"] = q.data_ptr(), out.data_ptr()
        job["keys"] = self._pool.keys[layer].data_ptr()
        job["values"] = self._pool.values[layer].data_ptr()
        self._team.run(ATTEND, self.job_address, self._threads)
        return out

    def _new_job(
        self, rows: Rows, query_heads: int, scale: float | None, window: int | None
    ) -> NDArray[np.void]:
        """[1] all but what a layer brings. The arrays it points to are this plan's."""
        job, pool = np.zeros(1, JOB), self._pool
        job["lengths"], job["units"] = self._lengths.ctypes.data, self._units.ctypes.data
        job["page_table"] = self._table.data_ptr()
        job["lines"], job["line_pages"] = self._table.shape
        job["rows"], job["query_heads"], job["unit_count"] = (
            rows.count,
            query_heads,
            len(self._units),
        )
        for size in ("pages", "kv_heads", "key_dim", "value_dim"):
            job[size] = getattr(pool, size)
        job["window"] = _NO_WINDOW if window is None else window
        job["scale"] = pool.key_dim**-0.5 if scale is None else scale
        return job


def _pieces(sequence: Ints, most_rows: int) -> Ints:
    """[pieces + 1] where the rows are cut: at every change of sequence, and every `most_rows`."""
    changes = np.flatnonzero(np.diff(sequence)) + 1
    bounds = [0, *changes.tolist(), len(sequence)]
    cuts = [np.arange(a, b, most_rows) for a, b in pairwise(bounds)]
    return np.concatenate([*cuts, [len(sequence)]])


def _work(pieces: Ints, lengths: Ints, window: int | None) -> Ints:
    """[pieces] rows × pages of each."""
    if len(pieces) == 1:
        return np.zeros(0, np.int64)
    longest = np.maximum.reduceat(lengths, pieces[:-1])
    seen = longest if window is None else np.minimum(longest, window + PAGE_TOKENS)
    work: Ints = np.diff(pieces) * (seen // PAGE_TOKENS + 1)
    return work


def _units(pieces: Ints, sequence: Ints, work: Ints, kv_heads: int, threads: int) -> Ints:
    """[pieces × KV heads, UNIT_COLUMNS]; threads get neighbouring units of equal work."""
    each = np.repeat(work, kv_heads)
    units = np.empty((len(each), UNIT_COLUMNS), np.int64)
    units[:, 0], units[:, 1] = np.repeat(pieces[:-1], kv_heads), np.repeat(pieces[1:], kv_heads)
    units[:, 2] = sequence[units[:, 0]]
    units[:, 3] = np.tile(np.arange(kv_heads), len(work))
    middle = each.cumsum() - (each + 1) // 2
    units[:, 4] = middle * threads // max(1, int(each.sum()))
    return units
