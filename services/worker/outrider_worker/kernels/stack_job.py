"""All layers of a plain decoder as one job: the team goes through them together.

One parallel region for a whole forward. Its threads share out outputs (products), rows (norms,
heads) or units (attention) and meet at a barrier wherever one needs what others wrote. Nothing in
between is a tensor, and no interpreter runs.

Knows: the order of operations, the records' layout in memory. Does not know: tensors, models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider_worker.kernels.attention_job import JOB, attend_share
from outrider_worker.kernels.compiled import callback, pasted
from outrider_worker.kernels.elementwise import Floats, gate, rms_norm
from outrider_worker.kernels.heads import place_heads
from outrider_worker.kernels.memory import floats, ints, records
from outrider_worker.kernels.panels import add_share, set_share
from outrider_worker.kernels.team import barrier, thread_count, thread_index
from outrider_worker.kv import PAGE_TOKENS

WEIGHTS = ("qkv", "out", "gate_up", "down")
"""Products of a layer; with a `_bias` each, which may be 0 for none."""

_ADDRESSES = (
    *("attention_norm", "qk_norm", "ffn_norm"),  # qk_norm may be 0 for none
    *WEIGHTS,
    *(f"{name}_bias" for name in WEIGHTS),
    *("keys", "values", "attention"),
)

LAYER = np.dtype(
    [(name, np.int64) for name in _ADDRESSES] + [("eps", np.float64), ("qk_eps", np.float64)]
)
"""One layer: addresses of norms, panels, biases, the pool's layer, the attention's JOB."""

_BUFFERS = ("x", "normed", "heads", "q", "mixed", "gate_up", "gated")
_SHARED = ("cos", "sin", "page", "offset", "layers", "layer_count", "hidden", "ffn")
STACK = np.dtype([(name, np.int64) for name in (*_BUFFERS, *_SHARED)])
"""One forward: addresses of buffers and of what its layers share, and of [layer_count] LAYERs.

x [R, d] goes in and comes out; normed [R, d], heads [R, Hq + 2·Hkv, D], q and mixed [R, Hq, D],
gate_up [R, 2f], gated [R, f] are scratch; cos and sin [R, D], page and offset [R].
"""


_stacks, _layers, _jobs = records(STACK), records(LAYER), records(JOB)


@pasted
def _attend(stack: Any, layer: Any, job: Any, x: Floats, thread: int, threads: int) -> None:
    """x += attention(norm(x))"""
    rows, dim, all_heads = job.rows, job.key_dim, job.query_heads + 2 * job.kv_heads
    first, end = rows * thread // threads, rows * (thread + 1) // threads
    normed = floats(stack.normed, x.shape)
    heads = floats(stack.heads, (rows, all_heads, dim))
    q = floats(stack.q, (rows, job.query_heads, dim))
    mixed = floats(stack.mixed, (rows, job.query_heads, dim))
    keys = floats(layer.keys, (job.pages, job.kv_heads, dim, PAGE_TOKENS))
    values = floats(layer.values, (job.pages, job.kv_heads, PAGE_TOKENS, dim))
    cos, sin = floats(stack.cos, (rows, dim)), floats(stack.sin, (rows, dim))
    page, offset = ints(stack.page, (rows,)), ints(stack.offset, (rows,))
    norms = job.query_heads + job.kv_heads if layer.qk_norm else 0

    weight = floats(layer.attention_norm, (1, x.shape[1]))
    rms_norm(x[first:end], weight, np.float32(layer.eps), normed[first:end])
    barrier()
    flat = floats(stack.heads, (rows, all_heads * dim))
    set_share(normed, layer.qkv, layer.qkv_bias, flat, thread, threads)
    barrier()
    place_heads(
        heads[first:end],
        floats(layer.qk_norm, (norms, dim)),
        np.float32(layer.qk_eps),
        cos[first:end],
        sin[first:end],
        page[first:end],
        offset[first:end],
        q[first:end],
        keys,
        values,
    )
    barrier()
    attend_share(job, q, keys, values, mixed, thread, threads)
    barrier()
    flat_mixed = floats(stack.mixed, (rows, job.query_heads * dim))
    add_share(flat_mixed, layer.out, layer.out_bias, x, thread, threads)
    barrier()


@pasted
def _feed_forward(stack: Any, layer: Any, x: Floats, thread: int, threads: int) -> None:
    """x += down(silu(gate(norm(x))) · up(norm(x)))"""
    rows = x.shape[0]
    first, end = rows * thread // threads, rows * (thread + 1) // threads
    normed = floats(stack.normed, x.shape)
    gate_up = floats(stack.gate_up, (rows, 2 * stack.ffn))
    gated = floats(stack.gated, (rows, stack.ffn))

    weight = floats(layer.ffn_norm, (1, x.shape[1]))
    rms_norm(x[first:end], weight, np.float32(layer.eps), normed[first:end])
    barrier()
    set_share(normed, layer.gate_up, layer.gate_up_bias, gate_up, thread, threads)
    barrier()
    gate(gate_up[first:end], gated[first:end])
    barrier()
    add_share(gated, layer.down, layer.down_bias, x, thread, threads)
    barrier()


@callback("void(int64)")
def _run(address: int) -> None:
    stack = _stacks(address, 1)[0]
    thread, threads = thread_index(), thread_count()
    layers = _layers(stack.layers, stack.layer_count)
    for index in range(stack.layer_count):
        layer = layers[index]
        job = _jobs(layer.attention, 1)[0]
        x = floats(stack.x, (job.rows, stack.hidden))
        _attend(stack, layer, job, x, thread, threads)
        _feed_forward(stack, layer, x, thread, threads)


RUN: int = _run.address
"""Compiled work for a team (kernels.team): all layers of a STACK."""
