"""Llama (Touvron et al. 2023): also SmolLM2 and Llama 3.

Knows: the order of operations of one forward, and the names of the weights in a checkpoint.
Does not know: files, requests, sampling, which attention backend it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.attention.base import AttentionBackend, AttentionPlan, Rows
from outrider_worker.kv import KvPool, SlotIndex
from outrider_worker.linear import Linear, make_linear
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.layers import GatedFeedForward, RmsNorm, Rotary, Turns

Weights = Callable[[str], Tensor]
"""Name → tensor, on the right device in the right dtype."""


@dataclass(frozen=True)
class Forward:
    """What all layers of one forward share."""

    pool: KvPool
    plan: AttentionPlan
    index: SlotIndex
    turns: Turns


class Attention:
    """Grouped-query attention with q, k and v in one product."""

    def __init__(self, config: ModelConfig, qkv: Linear, out: Linear) -> None:
        self._head_dim = config.head_dim
        self._query_end = config.query_heads
        self._key_end = config.query_heads + config.kv_heads
        self._qkv = qkv
        self._out = out

    def __call__(self, x: Tensor, layer: int, shared: Forward) -> Tensor:
        """[R, d] → [R, d]"""
        qkv = self._qkv(x).view(x.shape[0], -1, self._head_dim)
        rotated = Rotary.rotate(qkv[:, : self._key_end], shared.turns)
        q, k = rotated[:, : self._query_end], rotated[:, self._query_end :]
        shared.pool.write(layer, k, qkv[:, self._key_end :], shared.index)
        return self._out(shared.plan.attend(layer, q).view(x.shape[0], -1))


@dataclass(frozen=True)
class Layer:
    """Pre-normalised residual block."""

    attention_norm: RmsNorm
    attention: Attention
    ffn_norm: RmsNorm
    ffn: GatedFeedForward

    def __call__(self, x: Tensor, index: int, shared: Forward) -> Tensor:
        """[R, d] → [R, d]; x is used up."""
        x += self.attention(self.attention_norm(x), index, shared)
        x += self.ffn(self.ffn_norm(x))
        return x


class Llama:
    """A CausalLM."""

    def __init__(self, config: ModelConfig, weights: Weights, backend: AttentionBackend) -> None:
        self._config = config
        self._backend = backend
        self._embedding = weights("model.embed_tokens.weight")
        self._layers = tuple(_layer(config, weights, index) for index in range(config.layers))
        self._norm = RmsNorm(weights("model.norm.weight"), config.rms_eps)
        tied = config.tie_embeddings
        self._head = make_linear(self._embedding if tied else weights("lm_head.weight"))
        self._rotary = Rotary(config, self._embedding.dtype, self._embedding.device)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @torch.inference_mode()
    def forward(self, rows: Rows, pool: KvPool) -> Tensor:
        """See CausalLM.forward."""
        shared = Forward(
            pool=pool,
            plan=self._backend.plan(rows, pool, self._config.query_heads),
            index=SlotIndex.of(rows.slots),
            turns=self._rotary.turns(rows.positions),
        )
        x = self._embedding.index_select(0, rows.token_ids)
        for index, layer in enumerate(self._layers):
            x = layer(x, index, shared)
        return self._norm(x)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See CausalLM.logits."""
        return self._head(hidden).float()


def tensor_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint must hold."""
    return dict(_tensor_shapes(config))


def _tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, vocab = config.hidden_size, config.vocab_size
    yield "model.embed_tokens.weight", (vocab, d)
    yield "model.norm.weight", (d,)
    if not config.tie_embeddings:
        yield "lm_head.weight", (vocab, d)
    for index in range(config.layers):
        yield from _layer_shapes(config, f"model.layers.{index}")


def _layer_shapes(config: ModelConfig, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, ffn = config.hidden_size, config.ffn_size
    q, kv = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    attention = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q)}
    mlp = {"gate_proj": (ffn, d), "up_proj": (ffn, d), "down_proj": (d, ffn)}
    for block, shapes, bias in (
        ("self_attn", attention, config.attention_bias),
        ("mlp", mlp, config.mlp_bias),
    ):
        for name, (out, inner) in shapes.items():
            yield f"{prefix}.{block}.{name}.weight", (out, inner)
            if bias:
                yield f"{prefix}.{block}.{name}.bias", (out,)
    yield f"{prefix}.input_layernorm.weight", (d,)
    yield f"{prefix}.post_attention_layernorm.weight", (d,)


def _layer(config: ModelConfig, weights: Weights, index: int) -> Layer:
    prefix = f"model.layers.{index}"
    return Layer(
        attention_norm=RmsNorm(weights(f"{prefix}.input_layernorm.weight"), config.rms_eps),
        attention=_attention(config, weights, f"{prefix}.self_attn"),
        ffn_norm=RmsNorm(weights(f"{prefix}.post_attention_layernorm.weight"), config.rms_eps),
        ffn=_feed_forward(config, weights, f"{prefix}.mlp"),
    )


def _attention(config: ModelConfig, weights: Weights, prefix: str) -> Attention:
    def qkv(kind: str) -> Tensor:
        return torch.cat([weights(f"{prefix}.{name}_proj.{kind}") for name in "qkv"])

    bias = config.attention_bias
    return Attention(
        config,
        qkv=make_linear(qkv("weight"), qkv("bias") if bias else None),
        out=_linear(weights, f"{prefix}.o_proj", bias),
    )


def _feed_forward(config: ModelConfig, weights: Weights, prefix: str) -> GatedFeedForward:
    def gate_up(kind: str) -> Tensor:
        return torch.cat([weights(f"{prefix}.{name}.{kind}") for name in ("gate_proj", "up_proj")])

    bias = config.mlp_bias
    return GatedFeedForward(
        gate_up=make_linear(gate_up("weight"), gate_up("bias") if bias else None),
        down=_linear(weights, f"{prefix}.down_proj", bias),
    )


def _linear(weights: Weights, name: str, bias: bool) -> Linear:
    return make_linear(weights(f"{name}.weight"), weights(f"{name}.bias") if bias else None)
