"""From one product of q, k and v to rotated queries and a written cache: one kernel.

Every head of every row is computed by itself, so bits cannot depend on company.

Knows: arrays, the pool's layout (kv). Does not know: tensors, models, who owns a page.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider_worker.kernels.compiled import inlined, shared
from outrider_worker.kernels.elementwise import LANES, Floats, inverse_length


@inlined
def _normalise(head: Floats, weight: Floats, eps: np.float32, partial: Floats) -> None:
    """In place; see elementwise.rms_norm."""
    scale = inverse_length(head, eps, partial)
    for place in range(head.shape[0]):
        head[place] = head[place] * scale * weight[place]


@inlined
def _rotate(head: Floats, cos: Floats, sin: Floats) -> None:
    """In place: dimension i pairs with i + D/2; the first half of sin is negated already."""
    half = head.shape[0] // 2
    for place in range(half):
        low, high = head[place], head[half + place]
        head[place] = low * cos[place] + high * sin[place]
        head[half + place] = high * cos[half + place] + low * sin[half + place]


@shared
def place_heads(
    qkv: Floats,
    norm: Floats,
    eps: np.float32,
    cos: Floats,
    sin: Floats,
    pages: NDArray[np.int64],
    offsets: NDArray[np.int64],
    q: Floats,
    keys: Floats,
    values: Floats,
) -> None:
    """Normalise and rotate q and k, write k and v of every row to its slot.

    qkv: [R, Hq + 2·Hkv, D], used up. norm: [Hq + Hkv, D] weights, or no lines for none. cos, sin:
    [R, D]. pages, offsets: [R]. q: [R, Hq, D], written. keys, values: one layer of the pool.
    """
    query_heads, kv_heads = q.shape[1], keys.shape[1]
    partial = np.empty(LANES, np.float32)
    for row in range(qkv.shape[0]):
        page, offset = pages[row], offsets[row]
        for head in range(query_heads + kv_heads):
            if norm.shape[0]:
                _normalise(qkv[row, head], norm[head], eps, partial)
            _rotate(qkv[row, head], cos[row], sin[row])
        q[row] = qkv[row, :query_heads]
        for head in range(kv_heads):
            keys[page, head, :, offset] = qkv[row, query_heads + head]
            values[page, head, offset] = qkv[row, query_heads + kv_heads + head]
