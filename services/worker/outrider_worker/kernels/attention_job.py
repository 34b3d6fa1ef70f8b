"""One layer's attention as a job for the team: which arrays, and which thread takes which unit.

Knows: the job's layout in memory. Does not know: tensors, how a unit is computed (pages).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider_worker.kernels.compiled import callback, shared
from outrider_worker.kernels.elementwise import Floats
from outrider_worker.kernels.memory import floats, ints, records
from outrider_worker.kernels.pages import attend_unit
from outrider_worker.kernels.team import thread_count, thread_index
from outrider_worker.kv import PAGE_TOKENS

_ADDRESSES = ("q", "keys", "values", "out", "lengths", "page_table", "units")
_SIZES = (
    *("rows", "query_heads", "kv_heads", "key_dim", "value_dim"),
    *("pages", "lines", "line_pages", "unit_count"),
)

JOB = np.dtype(
    [(name, np.int64) for name in (*_ADDRESSES, *_SIZES, "window")] + [("scale", np.float64)]
)
"""What a job looks like in memory: addresses of arrays and their sizes.

q [rows, query_heads, key_dim], keys and values of one layer of the pool, out [rows, query_heads,
value_dim]; lengths [rows], page_table [lines, line_pages], units [unit_count, UNIT_COLUMNS], all
int64. window: keys that a row sees at most. scale: factor on q·k.
"""

UNIT_COLUMNS = 5
"""First row, end of its rows, line of the page table, KV head, thread."""

_jobs = records(JOB)


@shared
def attend_share(
    job: Any, q: Floats, keys: Floats, values: Floats, out: Floats, thread: int, threads: int
) -> None:
    """The units of one thread; a smaller team than was planned for shares the others' out."""
    lengths = ints(job.lengths, (job.rows,))
    table = ints(job.page_table, (job.lines, job.line_pages))
    units = ints(job.units, (job.unit_count, UNIT_COLUMNS))
    for unit in range(job.unit_count):
        first, end, line = units[unit, 0], units[unit, 1], units[unit, 2]
        kv_head, owner = units[unit, 3], units[unit, 4]
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


@callback("void(int64)")
def _attend(address: int) -> None:
    job = _jobs(address, 1)[0]
    attend_share(
        job,
        floats(job.q, (job.rows, job.query_heads, job.key_dim)),
        floats(job.keys, (job.pages, job.kv_heads, job.key_dim, PAGE_TOKENS)),
        floats(job.values, (job.pages, job.kv_heads, PAGE_TOKENS, job.value_dim)),
        floats(job.out, (job.rows, job.query_heads, job.value_dim)),
        thread_index(),
        thread_count(),
    )


ATTEND: int = _attend.address
"""Compiled work for a team (kernels.team) that writes a job's `out`."""
