"""The product of rows and a fixed weight, by panels of its outputs.

Every output is one chain of fused multiply-adds along the inner dimension, whoever shares the
call, so a row's bits cannot depend on company. A panel (the weights of PANEL outputs, inner
dimension first) is read from memory once and stays in a core's cache while the rows pass.

Knows: the layout of a weight in panels. Does not know: tensors, which thread it is.
"""

from __future__ import annotations

from outrider_worker.kernels.compiled import inlined, shared
from outrider_worker.kernels.elementwise import LANES, Floats
from outrider_worker.kernels.memory import floats
from outrider_worker.kernels.products import add_product

PANEL = 4 * LANES
"""Outputs of a panel; the last may have fewer, in whole LANES."""

_DEPTH = 128
"""Inner dimension worked on at once: such a piece of a panel stays in the first cache."""

_FLOAT_BYTES = 4


@shared
def add_share(x: Floats, weight: int, bias: int, out: Floats, thread: int, threads: int) -> None:
    """out [R, n] += x [R, k] · Wᵀ + b, one thread's panels of it.

    weight: address of the panels. bias: address of [n], 0 for none.
    """
    depth, outputs = x.shape[1], out.shape[1]
    panels = (outputs + PANEL - 1) // PANEL
    for panel in range(panels * thread // threads, panels * (thread + 1) // threads):
        first = panel * PANEL
        width = min(PANEL, outputs - first)
        part = out[:, first : first + width]
        if bias:
            _add_to_rows(part, floats(bias + first * _FLOAT_BYTES, (width,)))
        columns = floats(weight + first * depth * _FLOAT_BYTES, (depth, width))
        for start in range(0, depth, _DEPTH):
            end = min(start + _DEPTH, depth)
            add_product(x[:, start:end], columns[start:end], part)


@shared
def set_share(x: Floats, weight: int, bias: int, out: Floats, thread: int, threads: int) -> None:
    """out = x · Wᵀ + b. See add_share."""
    panels = (out.shape[1] + PANEL - 1) // PANEL
    first, end = panels * thread // threads * PANEL, panels * (thread + 1) // threads * PANEL
    out[:, first:end] = 0
    add_share(x, weight, bias, out, thread, threads)


@inlined
def _add_to_rows(rows: Floats, bias: Floats) -> None:
    for row in range(rows.shape[0]):
        for place in range(rows.shape[1]):
            rows[row, place] += bias[place]
