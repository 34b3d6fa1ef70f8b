"""Architectures by the name their config.json gives, each imported only when it is chosen.

A new architecture is one file in this package and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outrider_worker.attention.base import AttentionBackend
from outrider_worker.model.base import CausalLM
from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.settings_json import JsonSettings
from outrider_worker.model.weights import Weights

Configure = Callable[[ModelConfig, JsonSettings], ModelConfig]


@dataclass(frozen=True)
class Architecture:
    """How to build one kind of model from a checkpoint."""

    configure: Configure
    """From the settings that all families share, those of this one."""
    tensor_shapes: Callable[[ModelConfig], Mapping[str, tuple[int, ...]]]
    """Every tensor the checkpoint must hold."""
    build: Callable[[ModelConfig, Weights, AttentionBackend], CausalLM]
    """From configuration, a reader of tensors by name, and the attention to use."""


def _decoder(configure: Configure) -> Architecture:
    """A family that differs from the others in settings alone."""
    from outrider_worker.model.decoder import Decoder
    from outrider_worker.model.shapes import tensor_shapes

    return Architecture(configure, tensor_shapes, Decoder)


def _llama() -> Architecture:
    from outrider_worker.model.llama import configure

    return _decoder(configure)


def _mistral() -> Architecture:
    from outrider_worker.model.mistral import configure

    return _decoder(configure)


def _qwen2() -> Architecture:
    from outrider_worker.model.qwen2 import configure

    return _decoder(configure)


def _qwen3() -> Architecture:
    from outrider_worker.model.qwen3 import configure

    return _decoder(configure)


def _qwen3_moe() -> Architecture:
    from outrider_worker.model.config_moe import configure_qwen3_moe
    from outrider_worker.model.qwen3_moe import Qwen3Moe, tensor_shapes

    return Architecture(configure_qwen3_moe, tensor_shapes, Qwen3Moe)


def _deepseek(version: int) -> Architecture:
    from outrider_worker.model.config_moe import configure_deepseek_v2, configure_deepseek_v3
    from outrider_worker.model.deepseek import Deepseek, tensor_shapes

    configure = configure_deepseek_v3 if version == 3 else configure_deepseek_v2
    return Architecture(configure, tensor_shapes, Deepseek)


ARCHITECTURES: Mapping[str, Callable[[], Architecture]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "MiMoForCausalLM": _qwen2,  # beside its drafting layers, a Qwen2
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "DeepseekV2ForCausalLM": lambda: _deepseek(2),
    "DeepseekV3ForCausalLM": lambda: _deepseek(3),
}


def find_architecture(name: str) -> Architecture:
    """The architecture called `name`. Raises ModelError listing the known ones."""
    try:
        factory = ARCHITECTURES[name]
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"architecture {name!r} is not supported; known: {known}") from None
    return factory()
