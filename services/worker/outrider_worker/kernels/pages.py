"""Attention of rows over the pages of their sequences: the kernel.

Online softmax (Milakov and Gimelshein 2018): page after page, in position order, a row keeps its
greatest score, the sum of its weights and its mix of values. Rows of one *unit* (a few rows of one
sequence, times the query heads of one KV head) read a page together; what one of them computes is
the same whoever else is in the unit.

Knows: the job's arrays, the pool's layout (kv). Does not know: tensors, plans, threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider_worker.kernels.compiled import inlined, shared
from outrider_worker.kernels.elementwise import LANES, Floats
from outrider_worker.kernels.exponential import exp
from outrider_worker.kernels.products import add_product
from outrider_worker.kv import PAGE_TOKENS

_NOTHING = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)
Ints = NDArray[np.int64]


@inlined
def _hide(scores: Floats, first: int, start: int, end: int) -> None:
    """Scores of a page whose keys begin at `first` → −∞ for keys outside of start … end − 1."""
    if start <= first and first + PAGE_TOKENS <= end:
        return
    for key in range(PAGE_TOKENS):
        if first + key < start or first + key >= end:
            scores[key] = _NOTHING


@inlined
def _greatest(scores: Floats, partial: Floats) -> np.float32:
    """partial: LANES floats of scratch."""
    partial[:] = _NOTHING
    for start in range(0, PAGE_TOKENS, LANES):
        for lane in range(LANES):
            score = scores[start + lane]
            partial[lane] = score if score > partial[lane] else partial[lane]
    greatest = _NOTHING
    for lane in range(LANES):
        greatest = partial[lane] if partial[lane] > greatest else greatest
    return greatest


@inlined
def _weigh(scores: Floats, peak: np.float32, partial: Floats) -> np.float32:
    """scores → exp(scores − peak), and their sum: LANES partial sums, then those in order."""
    partial[:] = _ZERO
    for start in range(0, PAGE_TOKENS, LANES):
        for lane in range(LANES):
            weight = exp(scores[start + lane] - peak)
            scores[start + lane] = weight
            partial[lane] += weight
    total = _ZERO
    for lane in range(LANES):
        total += partial[lane]
    return total


@shared
def attend_unit(
    q: Floats,
    keys: Floats,
    values: Floats,
    pages: Ints,
    lengths: Ints,
    kv_head: int,
    window: int,
    scale: np.float32,
    out: Floats,
) -> None:
    """q: [r, Hq, D] rows of one sequence. pages: its line of the page table. out: [r, Hq, Dv]."""
    rows, group = q.shape[0], q.shape[1] // keys.shape[1]
    vectors, first_head = rows * group, kv_head * group
    queries = np.empty((vectors, q.shape[2]), np.float32)
    scores = np.empty((vectors, PAGE_TOKENS), np.float32)
    mixed = np.zeros((vectors, values.shape[3]), np.float32)
    peaks = np.full(vectors, _NOTHING, np.float32)
    sums = np.zeros(vectors, np.float32)
    partial = np.empty(LANES, np.float32)
    for vector in range(vectors):
        for dim in range(q.shape[2]):
            queries[vector, dim] = q[vector // group, first_head + vector % group, dim] * scale
    shortest, longest = lengths.min(), lengths.max()
    first_page = max(0, shortest - window) // PAGE_TOKENS
    end_page = (longest + PAGE_TOKENS - 1) // PAGE_TOKENS
    for place in range(first_page, end_page):
        page = pages[place]
        scores[:] = _ZERO
        add_product(queries, keys[page, kv_head], scores)
        for vector in range(vectors):
            length = lengths[vector // group]
            _hide(scores[vector], place * PAGE_TOKENS, length - window, length)
            peak = max(peaks[vector], _greatest(scores[vector], partial))
            if peak == _NOTHING:
                scores[vector] = _ZERO
                continue
            total = _weigh(scores[vector], peak, partial)
            kept = exp(peaks[vector] - peak)
            if kept != _ONE:
                for dim in range(mixed.shape[1]):
                    mixed[vector, dim] *= kept
            sums[vector] = sums[vector] * kept + total
            peaks[vector] = peak
        add_product(scores, values[page, kv_head], mixed)
    for vector in range(vectors):
        share = _ONE / sums[vector] if sums[vector] > _ZERO else _ZERO
        for dim in range(mixed.shape[1]):
            out[vector // group, first_head + vector % group, dim] = mixed[vector, dim] * share
