"""Multi-head latent attention (DeepSeek-V2, 2024, section 2.1), absorbed.

A head's key and value are products of one small latent per token, so the latent is what is cached,
with one rotated key that all heads share. The head's product is not applied to every cached
token: on the key side it is moved over to the query, on the value side behind the mixture
(section 2.1.2, last paragraph), so that attention sees one KV head with a long key.

Knows: the projections, what is cached, the names of the weights in a checkpoint.
Does not know: how attention is computed, the rest of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.linear import Linear, make_linear
from outrider_worker.model.config import MlaConfig, ModelConfig, ModelError
from outrider_worker.model.decoder import Forward
from outrider_worker.model.head_products import HeadProducts
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.rotary import Rotary, Turns
from outrider_worker.model.shapes import Shapes, linear_shapes
from outrider_worker.model.weights import Weights, linear

_LATENT_EPS = 1e-6
"""Of the norms inside attention, whatever the configuration says of the others."""


@dataclass(frozen=True)
class CompressedQuery:
    """A query's two products with a norm between them."""

    down: Linear
    norm: RmsNorm
    up: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """[R, d] → [R, heads × (nope + rope)]"""
        return self.up(self.norm(self.down(x)))


@dataclass(frozen=True)
class LatentAttention:
    """Attention of one layer (a decoder.Mixer)."""

    layer: int
    mla: MlaConfig
    query: Linear
    """[R, d] → [R, heads × (nope + rope)]"""
    latent: Linear
    """[R, d] → [R, kv_rank + rope]"""
    latent_norm: RmsNorm
    key_products: HeadProducts
    """nope → kv_rank: the key's product, on the query's side"""
    value_products: HeadProducts
    """kv_rank → value_dim"""
    out: Linear
    """[R, heads × value_dim] → [R, d]"""

    def __call__(self, x: Tensor, shared: Forward) -> Tensor:
        """[R, d] → [R, d]"""
        self._cache(x, shared)
        plan = shared.plans[None]
        mixed = plan.attend(self.layer, self._queries(x, shared.turns))
        return self.out(self.value_products(mixed).flatten(1))

    def _cache(self, x: Tensor, shared: Forward) -> None:
        """Write the key [R, 1, kv_rank + rope] of every row: its latent and its rotated part."""
        latent, rope = self.latent(x).split([self.mla.kv_rank, self.mla.rope_dim], dim=-1)
        rotated = Rotary.rotate(rope.unsqueeze(1), shared.turns)
        key = torch.cat([self.latent_norm(latent).unsqueeze(1), rotated], dim=-1)
        shared.pool.write(self.layer, key, None, shared.index)

    def _queries(self, x: Tensor, turns: Turns) -> Tensor:
        """[R, heads, kv_rank + rope]"""
        sizes = [self.mla.nope_dim, self.mla.rope_dim]
        nope, rope = self.query(x).view(x.shape[0], -1, sum(sizes)).split(sizes, dim=-1)
        return torch.cat([self.key_products(nope), Rotary.rotate(rope, turns)], dim=-1)


def make_attention(config: ModelConfig, weights: Weights, layer: int) -> LatentAttention:
    """The attention of `layer` in a checkpoint. Raises ModelError for a model without latents."""
    mla, prefix = latent_settings(config), f"model.layers.{layer}.self_attn"
    heads, bias = config.query_heads, config.attention_bias
    turned = _Turned(weights, mla)
    expand = weights(f"{prefix}.kv_b_proj.weight").unflatten(0, (heads, -1))
    keys, values = expand.split([mla.nope_dim, mla.value_dim], dim=1)
    return LatentAttention(
        layer,
        mla,
        query=_query(config, mla, weights, turned, prefix),
        latent=make_linear(
            turned(f"{prefix}.kv_a_proj_with_mqa.weight", mla.kv_rank),
            turned(f"{prefix}.kv_a_proj_with_mqa.bias", mla.kv_rank) if bias else None,
        ),
        latent_norm=RmsNorm(weights(f"{prefix}.kv_a_layernorm.weight"), _LATENT_EPS),
        key_products=HeadProducts(keys),
        value_products=HeadProducts(values.transpose(1, 2)),
        out=linear(weights, f"{prefix}.o_proj", config.attention_out_bias),
    )


def _query(
    config: ModelConfig, mla: MlaConfig, weights: Weights, turned: _Turned, prefix: str
) -> Linear | CompressedQuery:
    if mla.q_rank is None:
        return make_linear(turned(f"{prefix}.q_proj.weight", mla.nope_dim))
    return CompressedQuery(
        down=linear(weights, f"{prefix}.q_a_proj", config.attention_bias),
        norm=RmsNorm(weights(f"{prefix}.q_a_layernorm.weight"), _LATENT_EPS),
        up=make_linear(turned(f"{prefix}.q_b_proj.weight", mla.nope_dim)),
    )


@dataclass(frozen=True)
class _Turned:
    """Weights whose rotating outputs are brought into the order that Rotary takes.

    Checkpoints pair a rotating dimension with its neighbour, Rotary with the one half a head off.
    Products of queries and keys do not depend on the order, as long as both have the same.
    """

    weights: Weights
    mla: MlaConfig

    def __call__(self, name: str, still: int) -> Tensor:
        """The tensor called `name`; in each head, `still` outputs come before the rotating ones."""
        plain = self.weights(name)
        if not self.mla.interleaved:
            return plain
        rope = torch.arange(self.mla.rope_dim, device=plain.device).view(-1, 2).T.flatten()
        order = torch.cat([torch.arange(still, device=plain.device), still + rope])
        heads: Tensor = plain.unflatten(0, (-1, len(order)))
        return heads.index_select(1, order).flatten(0, 1)


def attention_shapes(config: ModelConfig, layer: int) -> Shapes:
    """The tensors of latent attention."""
    mla, d, prefix = latent_settings(config), config.hidden_size, f"model.layers.{layer}.self_attn"
    queries = config.query_heads * (mla.nope_dim + mla.rope_dim)
    expanded = config.query_heads * (mla.nope_dim + mla.value_dim)
    mixed = config.query_heads * mla.value_dim
    bias = config.attention_bias
    if mla.q_rank is None:
        yield from linear_shapes(f"{prefix}.q_proj", queries, d)
    else:
        yield from linear_shapes(f"{prefix}.q_a_proj", mla.q_rank, d, bias)
        yield f"{prefix}.q_a_layernorm.weight", (mla.q_rank,)
        yield from linear_shapes(f"{prefix}.q_b_proj", queries, mla.q_rank)
    latent = mla.kv_rank + mla.rope_dim
    yield from linear_shapes(f"{prefix}.kv_a_proj_with_mqa", latent, d, bias)
    yield f"{prefix}.kv_a_layernorm.weight", (mla.kv_rank,)
    yield from linear_shapes(f"{prefix}.kv_b_proj", expanded, mla.kv_rank)
    yield from linear_shapes(f"{prefix}.o_proj", d, mixed, config.attention_out_bias)


def latent_settings(config: ModelConfig) -> MlaConfig:
    """Raises ModelError where the configuration has none."""
    if config.mla is None:
        raise ModelError(f"{config.architecture} needs the settings of latent attention")
    return config.mla
