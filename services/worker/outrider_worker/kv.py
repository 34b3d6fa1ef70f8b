"""The paged key/value store of one model.

Knows: the tensors, their layout, how many tokens fit a budget, how to write rows into slots.
Does not know: which request owns which page (engine.pages), or how attention reads them.

Layout: keys are kept transposed, [pages, kv_heads, key_dim, PAGE_TOKENS], values
[pages, kv_heads, PAGE_TOKENS, value_dim]. So both products of attention over one page,
q·K and p·V, are plain row-major matrix products: about twice as fast on CPUs as a product
with transposed keys, which is where decoding spends its attention time.

Where a model's values are a part of its keys (multi-head latent attention, DeepSeek-V2, section
2.1: the value is the latent, the key is the latent and a rotated part), nothing is stored twice:
the values are views into the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PAGE_TOKENS = 64
"""Tokens per page; also the block of keys that attention works on."""


class KvShape(Protocol):
    """The part of a model's configuration that sizes its cache."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def key_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def values_in_keys(self) -> bool: ...


@dataclass(frozen=True)
class SlotIndex:
    """Where the rows of one forward go, worked out once and used in every layer."""

    page: Tensor
    """[R] int64"""
    offset: Tensor
    """[R] int64, within the page."""

    @classmethod
    def of(cls, slots: Tensor) -> SlotIndex:
        """slots [R] int64, each page × PAGE_TOKENS + offset."""
        return cls(page=slots // PAGE_TOKENS, offset=slots % PAGE_TOKENS)


def values_within(keys: Tensor, value_dim: int) -> Tensor:
    """The values that are the first `value_dim` entries of their keys, as a view.

    keys: […, key_dim, PAGE_TOKENS] → […, PAGE_TOKENS, value_dim].
    """
    return keys[..., :value_dim, :].transpose(-1, -2)


@dataclass(frozen=True)
class KvPool:
    """K and V of every layer, in pages. Page 0 is the null page."""

    keys: tuple[Tensor, ...]
    """per layer [pages, kv_heads, key_dim, PAGE_TOKENS]"""
    values: tuple[Tensor, ...]
    """per layer [pages, kv_heads, PAGE_TOKENS, value_dim]"""
    values_in_keys: bool = False
    """values are `values_within(keys)`: views, not contiguous."""

    @staticmethod
    def bytes_per_token(shape: KvShape, dtype: torch.dtype) -> int:
        """Memory of one token's K and V over all layers."""
        entries = shape.key_dim if shape.values_in_keys else shape.key_dim + shape.value_dim
        return shape.layers * shape.kv_heads * entries * dtype.itemsize

    @classmethod
    def of_pages(
        cls, shape: KvShape, pages: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> KvPool:
        """A pool of `pages` pages, the null page among them.

        It starts as zeros: attention multiplies masked slots by zero, which needs them finite.
        """
        if pages < 2:
            raise ValueError(f"a KV pool needs the null page and one more, not {pages}")

        def per_layer(*page: int) -> tuple[Tensor, ...]:
            size = (pages, shape.kv_heads, *page)
            return tuple(torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers))

        keys = per_layer(shape.key_dim, PAGE_TOKENS)
        if shape.values_in_keys:
            return cls(keys, tuple(values_within(k, shape.value_dim) for k in keys), True)
        return cls(keys, per_layer(PAGE_TOKENS, shape.value_dim))

    @classmethod
    def for_budget(
        cls,
        shape: KvShape,
        budget_bytes: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        besides_bytes: int = 0,
    ) -> KvPool:
        """The largest pool within `budget_bytes`. Raises ValueError where no page fits.

        besides_bytes: what each page costs elsewhere, in a drafter's pool.
        """
        page_bytes = cls.bytes_per_token(shape, dtype) * PAGE_TOKENS + besides_bytes
        pages = budget_bytes // page_bytes
        if pages < 2:
            raise ValueError(
                f"a KV budget of {budget_bytes} bytes is too small: "
                f"one page of {PAGE_TOKENS} tokens takes {page_bytes} bytes and two are needed"
            )
        return cls.of_pages(shape, pages, dtype, device)

    @property
    def pages(self) -> int:
        """Pages in all, the null page included."""
        return self.keys[0].shape[0]

    @property
    def kv_heads(self) -> int:
        return self.keys[0].shape[1]

    @property
    def key_dim(self) -> int:
        return self.keys[0].shape[2]

    @property
    def value_dim(self) -> int:
        return self.values[0].shape[3]

    @property
    def dtype(self) -> torch.dtype:
        return self.keys[0].dtype

    def write(self, layer: int, k: Tensor, v: Tensor | None, index: SlotIndex) -> None:
        """Store k [R, kv_heads, key_dim] and v [R, kv_heads, value_dim] of one layer at `index`.

        v is None where values lie in the keys. Rows that share a slot (padding rows on the null
        page) leave one of their values there. Raises ValueError for a v too many or too few.
        """
        if (v is None) is not self.values_in_keys:
            raise ValueError("this pool keeps values " + ("in keys" if v is not None else "apart"))
        self.keys[layer][index.page, :, :, index.offset] = k
        if v is not None:
            self.values[layer][index.page, :, index.offset] = v
