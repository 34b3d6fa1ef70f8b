"""DeepSeek-V2 and V3 (DeepSeek-AI 2024; R1 is a V3): latent attention, and experts above the first
layers. The layers that draft (multi-token prediction) are not part of the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider_worker.model import mla, moe, shapes
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.decoder import Decoder


class Deepseek(Decoder):
    """A CausalLM."""

    make_attention = staticmethod(mla.make_attention)
    make_feed_forward = staticmethod(moe.make_feed_forward)


def tensor_shapes(config: ModelConfig) -> Mapping[str, shapes.Shape]:
    """Name and shape of every tensor that a checkpoint must hold."""
    return shapes.tensor_shapes(config, mla.attention_shapes, moe.feed_forward_shapes)
