"""What the metadata of a Llama-type GGUF file says, as config.json and generation_config.json.

Knows: GGUF's names for settings and which of their values Llama models have. Does not know: how the
file is read, its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider_worker.model.config import ModelError
from outrider_worker.model.gguf_tokenizer import end_ids

ROPE_DIVISORS = "rope_freqs.weight"
"""The tensor of what a Llama-3 file divides rotary frequencies by; not part of the model."""

_EMBEDDING = "token_embd.weight"


def model_config(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
    rope_divisors: NDArray[np.float32] | None,
) -> dict[str, Any]:
    """config.json.

    Args:
        metadata: by GGUF's names.
        tensors: the file's, by GGUF's names; only looked at for names and shapes.
        rope_divisors: [head size / 2] the content of `ROPE_DIVISORS`, where the file has it.

    Raises:
        ModelError: another architecture, or a setting that is missing or not supported.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"GGUF architecture {architecture!r} is not supported, only 'llama'")
    if _setting(metadata, "expert_count", 0):
        raise ModelError("GGUF models with experts are not supported")
    if _EMBEDDING not in tensors:
        raise ModelError(f"the GGUF file lacks the tensor {_EMBEDDING}")
    heads, hidden = _count(metadata, "attention.head_count"), _count(metadata, "embedding_length")
    head_dim = _count(metadata, "attention.key_length", hidden // heads)
    if _count(metadata, "rope.dimension_count", head_dim) != head_dim:
        raise ModelError("GGUF models that rotate a part of each head are not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(tensors[_EMBEDDING].shape[1]),
        "hidden_size": hidden,
        "intermediate_size": _count(metadata, "feed_forward_length"),
        "num_hidden_layers": _count(metadata, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _count(metadata, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _count(metadata, "context_length"),
        "rms_norm_eps": _setting(metadata, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(metadata, rope_divisors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "hidden_act": "silu",
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json."""
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(metadata),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _setting(metadata: Mapping[str, Any], name: str, default: Any = None) -> Any:
    value = metadata.get(f"llama.{name}", default)
    if value is None:
        raise ModelError(f"the GGUF file lacks llama.{name}")
    return value


def _count(metadata: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive whole number; GGUF may also hold a list with one for each layer."""
    value = _setting(metadata, name, default)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"GGUF: llama.{name} must be a positive whole number, not {value!r}")
    return value


def _rope(metadata: Mapping[str, Any], divisors: NDArray[np.float32] | None) -> dict[str, Any]:
    theta = _setting(metadata, "rope.freq_base", 10_000.0)
    kind = _setting(metadata, "rope.scaling.type", "none")
    if kind == "linear":
        factor = _setting(metadata, "rope.scaling.factor")
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind != "none":
        raise ModelError(f"GGUF rotary scaling {kind!r} is not supported")
    if divisors is not None:
        return _llama3_rope(divisors, theta)
    return {"rope_type": "default", "rope_theta": theta}


def _llama3_rope(divisors: NDArray[np.float32], theta: float) -> dict[str, Any]:
    """Llama-3 files hold the divisor of each frequency; find the settings that it came from."""
    turns = 8192 * theta ** -(np.arange(len(divisors)) / len(divisors)) / (2 * np.pi)
    kept = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    factor = float(divisors.max())
    if not np.allclose(divisors, 1 / (kept + (1 - kept) / factor), rtol=1e-4):
        raise ModelError("the GGUF file's rotary frequency factors are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
