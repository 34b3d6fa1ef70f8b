"""Layers of a drafting network, made of the decoder's parts.

Knows: what one forward of them shares, how an ordinary layer is read.
Does not know: files, how a network's input is made, rounds.
"""

from __future__ import annotations

import torch

from outrider_worker.attention.base import AttentionBackend, Rows
from outrider_worker.kv import KvPool, SlotIndex
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.decoder import Decoder, Forward, Layer
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.rotary import Rotary
from outrider_worker.model.weights import Weights


class DraftForward:
    """What all layers of one forward share, worked out from its rows."""

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


def read_layer(family: type[Decoder], config: ModelConfig, weights: Weights, index: int) -> Layer:
    """Layer `index` of a checkpoint, with the attention and feed-forward of `family`."""
    prefix, eps = f"model.layers.{index}", config.rms_eps
    return Layer(
        attention_norm=RmsNorm(weights(f"{prefix}.input_layernorm.weight"), eps),
        attention=family.make_attention(config, weights, index),
        ffn_norm=RmsNorm(weights(f"{prefix}.post_attention_layernorm.weight"), eps),
        ffn=family.make_feed_forward(config, weights, index),
    )
