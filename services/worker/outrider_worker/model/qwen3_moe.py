"""Qwen3-MoE (Yang et al. 2025): Qwen3 with experts for feed-forwards, none of them shared."""

from __future__ import annotations

from collections.abc import Mapping

from outrider_worker.model import moe, shapes
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.decoder import Decoder


class Qwen3Moe(Decoder):
    """A CausalLM."""

    make_feed_forward = staticmethod(moe.make_feed_forward)


def tensor_shapes(config: ModelConfig) -> Mapping[str, shapes.Shape]:
    """Name and shape of every tensor that a checkpoint must hold."""
    return shapes.tensor_shapes(config, ffn=moe.feed_forward_shapes)
