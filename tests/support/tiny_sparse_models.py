"""Tiny checkpoints with experts: random weights, real files, as in tiny_models.

What tensors there are follows from the worker's own list: the reference library, which reads the
same files in parity tests, would complain of missing ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from outrider_worker.model.config_json import parse_config
from outrider_worker.model.registry import find_architecture
from tests.support.tiny_models import VOCAB_SIZE, random_weights, write_tiny_model

_COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DEEPSEEK: Mapping[str, Any] = {
    **_COMMON,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen3_moe": {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 8,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "deepseek_v2": {
        **_DEEPSEEK,
        "architectures": ["DeepseekV2ForCausalLM"],
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
    },
    "deepseek_v3": {
        **_DEEPSEEK,
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
}


@cache
def shared_tiny_sparse(family: str) -> Path:
    """The default model of `family`, made once per test process. Do not write into the folder."""
    return make_tiny_sparse(Path(tempfile.mkdtemp(prefix="outrider-tiny-")), family)


def make_tiny_sparse(folder: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of `family` into `folder`; returns the folder.

    overrides replace entries of config.json.
    """
    settings = {**settings_of(family), **overrides}
    config = parse_config(settings, {})
    shapes = find_architecture(config.architecture).tensor_shapes(config)
    return write_tiny_model(folder, settings, random_weights(shapes, seed))


def settings_of(family: str) -> dict[str, Any]:
    """What config.json of the default model holds."""
    return {"model_type": family, **_FAMILIES[family]}
