"""Models of random weights in the shapes that are checked: tiny ones of every family, and an 8B.

No files: weights are drawn by name, so that two devices can be given the same model, or drawn where
they are to be used, so that an 8B shape is there in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from outrider_worker.attention import make_attention
from outrider_worker.model.base import CausalLM
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.config_json import parse_config
from outrider_worker.model.registry import find_architecture

CPU = torch.device("cpu")

_TINY: Mapping[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

TINY: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "mistral, window 40": {"architectures": ["MistralForCausalLM"], "sliding_window": 40},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4,
        "norm_topk_prob": True,
        **_EXPERTS,
    },
    "deepseek-v3": {"architectures": ["DeepseekV3ForCausalLM"], **_LATENT, **_EXPERTS},
}

LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}


def tiny_config(family: str) -> ModelConfig:
    """A family of `TINY`, ready to build."""
    return parse_config({**_TINY, **TINY[family]}, {})


def config_of(settings: Mapping[str, Any]) -> ModelConfig:
    """The configuration that Hugging Face settings describe."""
    return parse_config(settings, {})


@dataclass(frozen=True)
class RandomWeights:
    """Tensors by name: normal with variance 1 / inputs, norms around one.

    drawn_on: where the numbers are made, in float32 if that is a CPU. The same place gives the
    same numbers. rounded_to: what they are rounded to before they become `dtype`.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device
    drawn_on: torch.device
    rounded_to: torch.dtype

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        shape = self.shapes[name]
        drawn = torch.float32 if self.drawn_on.type == "cpu" else self.dtype
        generator = torch.Generator(self.drawn_on).manual_seed(crc32(name.encode()))
        values = torch.empty(shape, dtype=drawn, device=self.drawn_on)
        is_norm = name.endswith("norm.weight")
        scale = 0.1 if is_norm or len(shape) == 1 else self._gain(name) * shape[-1] ** -0.5
        values.normal_(float(is_norm), scale, generator=generator)
        return values.to(self.rounded_to).to(self.device, dtype or self.dtype)

    @staticmethod
    def _gain(name: str) -> float:
        """Above one in tiny models' products, so that texts vary from token to token."""
        return 1.5 if "embed" not in name else 8.0


def random_model(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    attention: str,
    *,
    drawn_on: torch.device = CPU,
    rounded_to: torch.dtype = torch.float32,
) -> CausalLM:
    """A model whose weights follow from its configuration alone; see RandomWeights."""
    architecture = find_architecture(config.architecture)
    shapes = architecture.tensor_shapes(config)
    weights = RandomWeights(shapes, dtype, device, drawn_on, rounded_to)
    return architecture.build(config, weights, make_attention(attention))
