"""Latent attention in its absorbed form against the naive one, which makes keys and values."""

import pytest
import torch
from torch import Tensor

from outrider_worker.attention import make_attention as make_backend
from outrider_worker.kv import KvPool, SlotIndex
from outrider_worker.model.config import MlaConfig, ModelConfig, ModelError
from outrider_worker.model.config_json import parse_config
from outrider_worker.model.decoder import Forward
from outrider_worker.model.head_products import HeadProducts
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.mla import attention_shapes, make_attention
from outrider_worker.model.rotary import Rotary
from outrider_worker.model.weights import Weights
from tests.support.tiny_models import random_weights
from tests.support.tiny_sparse_models import settings_of
from tests.unit.worker.tensors.row_tables import rows_of

LENGTH = 70


def config_of(**overrides: object) -> ModelConfig:
    return parse_config({**settings_of("deepseek_v3"), "rope_interleave": False, **overrides}, {})


def reader(tensors: dict[str, Tensor]) -> Weights:
    def read(name: str, dtype: torch.dtype | None = None) -> Tensor:
        return tensors[name].to(dtype)

    return read


def absorbed(config: ModelConfig, weights: Weights, x: Tensor) -> Tensor:
    pool = KvPool.of_pages(config, 4, torch.float32)
    rows = rows_of([[0] * LENGTH], [[2, 1]], [(0, range(LENGTH))])
    plan = make_backend("blocks").plan(rows, pool, config.query_heads, config.softmax_scale)
    rotary = Rotary(config, torch.float32, x.device)
    shared = Forward(pool, {None: plan}, SlotIndex.of(rows.slots), rotary.turns(rows.positions))
    return make_attention(config, weights, 0)(x, shared)


def naive(config: ModelConfig, weights: Weights, x: Tensor) -> Tensor:
    """Every head's key and value of every token made from its latent (section 2.1.2)."""
    mla = mla_of(config)

    def product(name: str, x: Tensor) -> Tensor:
        return x @ weights(f"model.layers.0.self_attn.{name}.weight").T

    def norm(name: str, x: Tensor) -> Tensor:
        return RmsNorm(weights(f"model.layers.0.self_attn.{name}.weight"), 1e-6)(x)

    turns = Rotary(config, torch.float32, x.device).turns(torch.arange(LENGTH))
    q = product("q_b_proj", norm("q_a_layernorm", product("q_a_proj", x)))
    q_nope, q_rope = q.view(LENGTH, config.query_heads, -1).split([mla.nope_dim, mla.rope_dim], -1)
    latent, k_rope = product("kv_a_proj_with_mqa", x).split([mla.kv_rank, mla.rope_dim], -1)
    kv = product("kv_b_proj", norm("kv_a_layernorm", latent)).view(LENGTH, config.query_heads, -1)
    k_nope, v = kv.split([mla.nope_dim, mla.value_dim], -1)
    k_rope = Rotary.rotate(k_rope.unsqueeze(1), turns).expand(-1, config.query_heads, -1)
    q, k = torch.cat([q_nope, Rotary.rotate(q_rope, turns)], -1), torch.cat([k_nope, k_rope], -1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * config.softmax_scale
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
    return product("o_proj", mixed.flatten(1))


def mla_of(config: ModelConfig) -> MlaConfig:
    assert config.mla is not None
    return config.mla


@pytest.mark.parametrize("heads", [4, 16])
def test_absorbed_equals_naive(heads: int) -> None:
    config = config_of(num_attention_heads=heads, num_key_value_heads=heads)
    weights = reader(random_weights(dict(attention_shapes(config, 0)), seed=5))
    x = torch.randn(LENGTH, config.hidden_size, generator=torch.Generator().manual_seed(6))
    expected = naive(config, weights, x)
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(absorbed(config, weights, x), expected, rtol=0, atol=1e-4)


def test_one_latent_is_cached_per_token_and_nothing_twice() -> None:
    config = config_of()
    mla = mla_of(config)
    assert KvPool.bytes_per_token(config, torch.float32) == 4 * config.layers * (32 + 8)
    pool = KvPool.of_pages(config, 3, torch.float32)
    assert pool.values[1].data_ptr() == pool.keys[1].data_ptr()
    key = torch.randn(1, 1, mla.kv_rank + mla.rope_dim)
    pool.write(1, key, None, SlotIndex.of(torch.tensor([2 * 64 + 5])))
    assert torch.equal(pool.values[1][2, 0, 5], key[0, 0, : mla.kv_rank])
    assert pool.keys[0].count_nonzero() == 0
    with pytest.raises(ValueError, match="in keys"):
        pool.write(1, key, key, SlotIndex.of(torch.tensor([70])))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 33])
def test_heads_products_are_right_and_leave_rows_alone(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    products = HeadProducts(torch.randn(4, 24, 32, generator=generator))
    x = torch.randn(40, 4, 24, generator=generator)
    out = products(x[:rows])
    expected = torch.einsum("rhi,hio->rho", x[:rows], products._weight)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-4)
    assert torch.equal(out, products(x)[:rows])
    assert torch.equal(out[-1:], products(x[rows - 1 : rows]))


def test_a_model_without_latents_is_refused() -> None:
    config = parse_config(settings_of("qwen3_moe"), {})
    with pytest.raises(ModelError, match="latent attention"):
        make_attention(config, reader({}), 0)
