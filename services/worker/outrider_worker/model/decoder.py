"""A stack of pre-normalised layers over rows: what all families share.

Knows: the order of operations of one forward, grouped-query attention, the names of the weights.
Does not know: files, requests, sampling, which attention backend it runs on.

A family that differs in more than settings brings attention or feed-forward of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider_worker.attention.base import AttentionBackend, AttentionPlan, Rows
from outrider_worker.kernels import have_kernels
from outrider_worker.kv import KvPool, SlotIndex
from outrider_worker.linear import Linear, make_linear
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.rotary import Rotary, Turns
from outrider_worker.model.taps import Taps
from outrider_worker.model.weights import Weights, feed_forward, fused_linear, linear

if TYPE_CHECKING:
    from outrider_worker.model.fused import FusedStack


@dataclass(frozen=True)
class Forward:
    """What all layers of one forward share."""

    pool: KvPool
    plans: Mapping[int | None, AttentionPlan]
    """By sliding window."""
    index: SlotIndex
    turns: Turns


class ForwardMaker:
    """Works out from its rows what all layers of a forward share; one for each configuration."""

    def __init__(
        self,
        config: ModelConfig,
        backend: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._config = config
        self._backend = backend
        self._windows = {config.window(layer) for layer in range(config.layers)}
        self._rotary = Rotary(config, dtype, device)

    def __call__(self, rows: Rows, pool: KvPool) -> Forward:
        heads, scale = self._config.query_heads, self._config.softmax_scale
        return Forward(
            pool=pool,
            plans={
                window: self._backend.plan(rows, pool, heads, scale=scale, window=window)
                for window in self._windows
            },
            index=SlotIndex.of(rows.slots),
            turns=self._rotary.turns(rows.positions),
        )


Mixer = Callable[[Tensor, Forward], Tensor]
"""Attention of one layer: x [R, d] → [R, d], K/V of the rows written on the way."""

FeedForward = Callable[[Tensor], Tensor]
"""x [R, d] → [R, d], row by row."""

MakeMixer = Callable[[ModelConfig, Weights, int], Mixer]
MakeFeedForward = Callable[[ModelConfig, Weights, int], FeedForward]
"""From configuration, weights and the layer's index."""


class Attention:
    """Grouped-query attention with q, k and v in one product."""

    def __init__(
        self, config: ModelConfig, layer: int, qkv: Linear, out: Linear, norm: RmsNorm | None
    ) -> None:
        self._layer = layer
        self._window = config.window(layer)
        self._head_dim = config.head_dim
        self._query_end = config.query_heads
        self._key_end = config.query_heads + config.kv_heads
        self.qkv = qkv
        self.norm = norm
        self.out = out

    def __call__(self, x: Tensor, shared: Forward) -> Tensor:
        """See Mixer."""
        qkv = self.qkv(x).view(x.shape[0], -1, self._head_dim)
        qk, v = qkv[:, : self._key_end], qkv[:, self._key_end :]
        rotated = Rotary.rotate(self.norm(qk) if self.norm else qk, shared.turns)
        q, k = rotated[:, : self._query_end], rotated[:, self._query_end :]
        shared.pool.write(self._layer, k, v, shared.index)
        mixed = shared.plans[self._window].attend(self._layer, q)
        return self.out(mixed.view(x.shape[0], -1))

    @classmethod
    def read(cls, config: ModelConfig, weights: Weights, layer: int) -> Attention:
        """The attention of `layer` in a checkpoint."""
        prefix = f"model.layers.{layer}.self_attn"
        qkv = [f"{prefix}.{name}_proj" for name in "qkv"]
        return cls(
            config,
            layer,
            qkv=fused_linear(weights, qkv, config.attention_bias),
            out=linear(weights, f"{prefix}.o_proj", config.attention_out_bias),
            norm=_qk_norm(config, weights, prefix) if config.qk_norm else None,
        )


def _qk_norm(config: ModelConfig, weights: Weights, prefix: str) -> RmsNorm:
    """One norm over the heads of q and of k, which have a weight each."""
    q = weights(f"{prefix}.q_norm.weight").expand(config.query_heads, -1)
    k = weights(f"{prefix}.k_norm.weight").expand(config.kv_heads, -1)
    return RmsNorm(torch.cat([q, k]), config.rms_eps)


def _feed_forward(config: ModelConfig, weights: Weights, layer: int) -> FeedForward:
    return feed_forward(weights, f"model.layers.{layer}.mlp", config.mlp_bias)


@dataclass(frozen=True)
class Layer:
    """Pre-normalised residual block."""

    attention_norm: RmsNorm
    attention: Mixer
    ffn_norm: RmsNorm
    ffn: FeedForward

    def __call__(self, x: Tensor, shared: Forward) -> Tensor:
        """[R, d] → [R, d]; x is used up."""
        x += self.attention(self.attention_norm(x), shared)
        x += self.ffn(self.ffn_norm(x))
        return x


class Decoder:
    """A CausalLM. A family with attention or feed-forward of its own replaces how they are made."""

    make_attention: MakeMixer = staticmethod(Attention.read)
    make_feed_forward: MakeFeedForward = staticmethod(_feed_forward)

    def __init__(self, config: ModelConfig, weights: Weights, backend: AttentionBackend) -> None:
        self._config = config
        self._backend = backend
        self._embedding = weights("model.embed_tokens.weight")
        self._layers = tuple(
            self.read_layer(config, weights, index) for index in range(config.layers)
        )
        self._stack = self._fused_stack()
        self._norm = RmsNorm(weights("model.norm.weight"), config.rms_eps)
        tied = config.tie_embeddings
        self._head = make_linear(self._embedding if tied else weights("lm_head.weight"))
        self._shared = ForwardMaker(config, backend, self._embedding.dtype, self._embedding.device)

    @classmethod
    def read_layer(cls, config: ModelConfig, weights: Weights, index: int) -> Layer:
        """Layer `index` of a checkpoint, with this family's attention and feed-forward."""
        prefix, eps = f"model.layers.{index}", config.rms_eps
        return Layer(
            attention_norm=RmsNorm(weights(f"{prefix}.input_layernorm.weight"), eps),
            attention=cls.make_attention(config, weights, index),
            ffn_norm=RmsNorm(weights(f"{prefix}.post_attention_layernorm.weight"), eps),
            ffn=cls.make_feed_forward(config, weights, index),
        )

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def is_fused(self) -> bool:
        """Whether the layers run as one job of the CPU's own kernels."""
        return self._stack is not None

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """See CausalLM.embed."""
        return self._embedding.index_select(0, token_ids)

    def forward(self, rows: Rows, pool: KvPool) -> Tensor:
        """See CausalLM.forward."""
        return self.forward_with_features(rows, pool, ())[0]

    @torch.inference_mode()
    def forward_with_features(
        self, rows: Rows, pool: KvPool, boundaries: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """See CausalLM.forward_with_features."""
        shared = self._shared(rows, pool)
        x = self.embed(rows.token_ids)
        taps = Taps(boundaries, self._config.layers, x)
        hidden = self._norm(self._run_layers(x, shared, taps))
        return hidden, taps.features(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See CausalLM.logits."""
        return self._head(hidden).float()

    def _run_layers(self, x: Tensor, shared: Forward, taps: Taps) -> Tensor:
        """[R, d] → [R, d]; x is used up."""
        if self._stack is not None:
            return self._stack.run(x, shared, taps)
        taps.take(0, x)
        for after, layer in enumerate(self._layers, start=1):
            x = layer(x, shared)
            taps.take(after, x)
        return x

    def _fused_stack(self) -> FusedStack | None:
        if not have_kernels():
            return None
        from outrider_worker.model.fused import fused_stack  # compiles kernels where it must

        return fused_stack(self._config, self._layers, self._backend)
