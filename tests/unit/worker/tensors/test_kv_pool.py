"""The paged store: what is written where, and what it costs."""

import dataclasses

import pytest
import torch

from outrider_worker.kv import PAGE_TOKENS, KvPool, SlotIndex


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int = 3
    kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 12
    values_in_keys: bool = False


def test_the_pool_keeps_what_is_written() -> None:
    pool = KvPool.of_pages(Shape(), 5, torch.float32)
    k, v = torch.randn(2, 2, 16), torch.randn(2, 2, 12)
    pool.write(1, k, v, SlotIndex.of(torch.tensor([3 * PAGE_TOKENS + 7, PAGE_TOKENS])))
    assert torch.equal(pool.keys[1][3, :, :, 7], k[0])
    assert torch.equal(pool.values[1][1, :, 0], v[1])
    assert pool.keys[0].count_nonzero() == 0


def test_the_pool_fits_its_budget() -> None:
    per_token = KvPool.bytes_per_token(Shape(), torch.float32)
    assert per_token == 3 * 2 * (16 + 12) * 4
    pool = KvPool.for_budget(Shape(), 5 * PAGE_TOKENS * per_token + 1, torch.float32)
    assert pool.pages == 5
    with pytest.raises(ValueError, match="too small"):
        KvPool.for_budget(Shape(), 2 * PAGE_TOKENS * per_token - 1, torch.float32)


def test_values_in_keys_cost_nothing_and_are_not_written() -> None:
    shape = Shape(values_in_keys=True)
    assert KvPool.bytes_per_token(shape, torch.bfloat16) == 3 * 2 * 16 * 2
    pool = KvPool.of_pages(shape, 3, torch.float32)
    k = torch.randn(1, 2, 16)
    pool.write(2, k, None, SlotIndex.of(torch.tensor([2 * PAGE_TOKENS + 9])))
    assert torch.equal(pool.values[2][2, :, 9], k[0, :, :12])
    assert pool.values[2].shape == (3, 2, PAGE_TOKENS, 12)
    with pytest.raises(ValueError, match="in keys"):
        pool.write(2, k, k[..., :12], SlotIndex.of(torch.tensor([0])))


def test_values_apart_must_be_given() -> None:
    pool = KvPool.of_pages(Shape(), 2, torch.float32)
    with pytest.raises(ValueError, match="apart"):
        pool.write(0, torch.randn(1, 2, 16), None, SlotIndex.of(torch.tensor([0])))
