"""The two Triton kernels of paged attention over rows.

Flash decoding (Dao et al. 2023, "Flash-Decoding for long-context inference"): a row's keys are cut
into splits that run side by side, each with an online softmax (Milakov and Gimelshein 2018) in
float32; a second kernel adds the splits. Where a row is cut depends on its own length and window
alone, and every sum runs in position order, so a row's bits do not depend on the other rows.

Knows: pointers, strides, tiles. Does not know: tensors, plans, which device it runs on. Shapes are
checked by the caller (attention.triton_decode).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pages_of_split(
    length: tl.tensor,
    split: tl.tensor,
    WINDOW: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_PAGES: tl.constexpr,
) -> tl.tensor:
    """(start, end) of one split's pages, by place in the page table; empty where start ≥ end."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // PAGE_TOKENS
    stop = (length + PAGE_TOKENS - 1) // PAGE_TOKENS
    share = tl.maximum((stop - first + SPLITS - 1) // SPLITS, SPLIT_PAGES)
    start = first + split * share
    return start, tl.minimum(start + share, stop)


@triton.jit
def product(a: tl.tensor, b: tl.tensor, WIDEN: tl.constexpr) -> tl.tensor:
    """a · b, summed in float32. WIDEN: multiply in float32 too, bit for bit as IEEE has it."""
    if WIDEN:
        out = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        out = tl.dot(a.to(b.dtype), b)
    return out


@triton.jit(do_not_specialize_on_alignment=["sequence_ptr", "lengths_ptr", "table_ptr"])
def attend_split(
    q_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    sequence_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    table_ptr: tl.tensor,
    mixed_ptr: tl.tensor,
    peaks_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    q_row_stride: tl.tensor,
    q_head_stride: tl.tensor,
    key_page_stride: tl.tensor,
    key_head_stride: tl.tensor,
    key_dim_stride: tl.tensor,
    key_token_stride: tl.tensor,
    value_page_stride: tl.tensor,
    value_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_dim_stride: tl.tensor,
    table_stride: tl.tensor,
    scale: tl.tensor,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_PAGES: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """One program: one row, up to HEAD_TILE query heads of one KV head, one split of the keys.

    Writes, per query head and split, the unnormalised mix of values [VALUE_DIM], the greatest
    score and the sum of weights, all float32. An empty split writes nothing.
    """
    row = tl.program_id(0)
    tiles_per_kv_head = (GROUP + HEAD_TILE - 1) // HEAD_TILE
    kv_head = tl.program_id(1) // tiles_per_kv_head
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + row)
    start, end = pages_of_split(length, split, WINDOW, PAGE_TOKENS, SPLITS, SPLIT_PAGES)
    if start >= end:
        return

    in_group = tl.program_id(1) % tiles_per_kv_head * HEAD_TILE + tl.arange(0, HEAD_TILE)
    head = kv_head * GROUP + in_group
    token = tl.arange(0, PAGE_TOKENS)
    key_dim = tl.arange(0, KEY_TILE)
    value_dim = tl.arange(0, VALUE_TILE)
    real_head = (in_group < GROUP)[:, None]
    queries = q_ptr + row * q_row_stride + head[:, None] * q_head_stride
    table = table_ptr + tl.load(sequence_ptr + row) * table_stride

    peak = tl.full([HEAD_TILE], float("-inf"), tl.float32)
    total = tl.full([HEAD_TILE], 0.0, tl.float32)
    mixed = tl.full([HEAD_TILE, VALUE_TILE], 0.0, tl.float32)
    for place in range(start, end):
        page = tl.load(table + place).to(tl.int64)
        position = place * PAGE_TOKENS + token
        visible = position < length
        if WINDOW > 0:
            visible = visible & (position >= length - WINDOW)
        keys = keys_ptr + page * key_page_stride + kv_head * key_head_stride
        keys += token[None, :] * key_token_stride
        scores = tl.full([HEAD_TILE, PAGE_TOKENS], 0.0, tl.float32)
        for first_dim in tl.static_range(0, KEY_DIM, KEY_TILE):
            dim = first_dim + key_dim
            real = dim < KEY_DIM
            q = tl.load(queries + dim[None, :], mask=real_head & real[None, :], other=0.0)
            k_mask = real[:, None] & visible[None, :]
            k = tl.load(keys + dim[:, None] * key_dim_stride, mask=k_mask, other=0.0)
            scores += product(q, k, WIDEN)
        scores = tl.where(visible[None, :], scores * scale, float("-inf"))

        higher = tl.maximum(peak, tl.max(scores, 1))
        kept = tl.exp(peak - higher)
        weights = tl.exp(scores - higher[:, None])
        values = values_ptr + page * value_page_stride + kv_head * value_head_stride
        values += token[:, None] * value_token_stride + value_dim[None, :] * value_dim_stride
        v_mask = visible[:, None] & (value_dim < VALUE_DIM)[None, :]
        v = tl.load(values, mask=v_mask, other=0.0)
        mixed = mixed * kept[:, None] + product(weights, v, WIDEN)
        total = total * kept + tl.sum(weights, 1)
        peak = higher

    heads = tl.num_programs(1) // tiles_per_kv_head * GROUP
    place_of_split = (row.to(tl.int64) * heads + head) * SPLITS + split
    tl.store(peaks_ptr + place_of_split, peak, mask=in_group < GROUP)
    tl.store(totals_ptr + place_of_split, total, mask=in_group < GROUP)
    mixed_ptrs = mixed_ptr + place_of_split[:, None] * VALUE_DIM + value_dim[None, :]
    tl.store(mixed_ptrs, mixed, mask=real_head & (value_dim < VALUE_DIM)[None, :])


@triton.jit(do_not_specialize_on_alignment=["lengths_ptr"])
def combine_splits(
    mixed_ptr: tl.tensor,
    peaks_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    VALUE_DIM: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_PAGES: tl.constexpr,
) -> None:
    """One program: the splits of one row and query head, added and normalised; zeros for none."""
    row = tl.program_id(0)
    length = tl.load(lengths_ptr + row)
    split = tl.arange(0, SPLITS)
    start, end = pages_of_split(length, split, WINDOW, PAGE_TOKENS, SPLITS, SPLIT_PAGES)
    live = start < end

    vector = row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    place = vector * SPLITS + split
    dim = tl.arange(0, VALUE_TILE)
    real = dim < VALUE_DIM
    peaks = tl.load(peaks_ptr + place, mask=live, other=float("-inf"))
    peak = tl.where(length > 0, tl.max(peaks, 0), 0.0)
    share = tl.exp(peaks - peak)
    total = tl.sum(share * tl.load(totals_ptr + place, mask=live, other=0.0), 0)
    mask = live[:, None] & real[None, :]
    mixed = tl.load(mixed_ptr + place[:, None] * VALUE_DIM + dim[None, :], mask=mask, other=0.0)
    out = tl.sum(mixed * share[:, None], 0) / tl.where(length > 0, total, 1.0)
    tl.store(out_ptr + vector * VALUE_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=real)
