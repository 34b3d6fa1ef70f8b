"""One layer's attention as a job for the team: which arrays, and which thread takes which unit.

Knows: the job's layout in memory. Does not know: tensors, how a unit is computed (pages).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from outrider_worker.kernels.compiled import callback, inlined
from outrider_worker.kernels.pages import attend_unit
from outrider_worker.kernels.team import TeamWork, thread_count, thread_index
from outrider_worker.kv import PAGE_TOKENS

JOB = np.dtype(
    [
        ("q", np.int64),  # address of [rows, query_heads, key_dim]
        ("keys", np.int64),  # … of one layer of the pool
        ("values", np.int64),
        ("out", np.int64),  # … of [rows, query_heads, value_dim]
        ("lengths", np.int64),  # … of [rows] int64
        ("page_table", np.int64),  # … of [lines, line_pages] int64
        ("units", np.int64),  # … of [units, UNIT_COLUMNS] int64
        ("rows", np.int64),
        ("query_heads", np.int64),
        ("kv_heads", np.int64),
        ("key_dim", np.int64),
        ("value_dim", np.int64),
        ("pages", np.int64),
        ("lines", np.int64),
        ("line_pages", np.int64),
        ("unit_count", np.int64),
        ("window", np.int64),
        ("scale", np.float64),
    ]
)
"""What a job looks like in memory."""

UNIT_COLUMNS = 5
"""First row, end of its rows, line of the page table, KV head, thread."""

_RECORD = numba.from_dtype(JOB)


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@inlined
def _attend_share(job: Any, thread: int, threads: int) -> None:
    """The units of one thread; a smaller team than was planned for shares the others' out."""
    pool = (job.pages, job.kv_heads)
    q = carray(_pointer(job.q), (job.rows, job.query_heads, job.key_dim), np.float32)
    out = carray(_pointer(job.out), (job.rows, job.query_heads, job.value_dim), np.float32)
    keys = carray(_pointer(job.keys), (*pool, job.key_dim, PAGE_TOKENS), np.float32)
    values = carray(_pointer(job.values), (*pool, PAGE_TOKENS, job.value_dim), np.float32)
    lengths = carray(_pointer(job.lengths), (job.rows,), np.int64)
    table = carray(_pointer(job.page_table), (job.lines, job.line_pages), np.int64)
    units = carray(_pointer(job.units), (job.unit_count, UNIT_COLUMNS), np.int64)
    for unit in range(job.unit_count):
        first, end, line, kv_head, owner = units[unit]
        if owner % threads == thread:
            attend_unit(
                q[first:end],
                keys,
                values,
                table[line],
                lengths[first:end],
                kv_head,
                job.window,
                np.float32(job.scale),
                out[first:end],
            )


@callback(types.void(types.CPointer(_RECORD)))
def _attend(address: Any) -> None:
    job = carray(address, (1,))
    _attend_share(job[0], thread_index(), thread_count())


attend = TeamWork(_attend.address)
"""Writes a job's `out`."""
