"""GGUF files of Llama-type models, turned once into folders in the Hugging Face layout.

Knows: GGUF's names for settings and tensors, the rotary order of its q and k, the cache folder.
Does not know: how models run. Weights are written dequantised, in float32, exactly.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider_worker.cache import user_cache
from outrider_worker.model.config import ModelError
from outrider_worker.model.gguf_tokenizer import end_ids, write_tokenizer
from outrider_worker.model.gguf_weights import ShardWriter

_FORMAT_VERSION = 1
"""Raise it when what is written changes: older folders are then no longer found."""

_SAMPLED_BYTES = 1 << 20

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# A conversion takes seconds; a scratch folder this old belongs to nobody any more.
_ABANDONED_AFTER_S = 3600.0

Progress = Callable[[str, float], None]
Floats = NDArray[np.float32]


def converted_folder(path: Path, progress: Progress = lambda step, done: None) -> Path:
    """The folder that `path` converts to; made on first use, found again later.

    It appears whole or not at all: it is written beside its place and renamed.
    Raises ModelError for a broken file, another architecture, or an unknown tokenizer.
    """
    target = models_folder() / f"{path.stem}-{_fingerprint(path)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep_abandoned(target)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        convert(path, scratch, progress)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _sweep_abandoned(target: Path) -> None:
    """Remove what conversions that were killed half-way left behind."""
    for scratch in target.parent.glob(f".{target.name}-*"):
        if time.time() - scratch.stat().st_mtime > _ABANDONED_AFTER_S:
            shutil.rmtree(scratch, ignore_errors=True)


def models_folder() -> Path:
    """Where converted models are kept: the user's cache folder."""
    return user_cache() / "models"


def convert(path: Path, folder: Path, progress: Progress) -> None:
    """Write configuration, tokenizer and weights of the GGUF file `path` into `folder`."""
    progress("reading GGUF metadata", 0.0)
    reader = _open(path)
    metadata = _Metadata(reader.fields)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(metadata, tensors)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(metadata))
    write_tokenizer(folder, metadata)
    _write_weights(folder, tensors, config, progress)


class _Metadata(Mapping[str, Any]):
    """GGUF key/value pairs, decoded when they are asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name].contents()

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ModelError(f"{path} is no readable GGUF file: {error}") from error


def _fingerprint(path: Path) -> str:
    """Short hash of the file's size, first and last bytes, and what this module writes."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT_VERSION}:{size}:".encode())
    with path.open("rb") as file:
        digest.update(file.read(_SAMPLED_BYTES))
        file.seek(max(0, size - _SAMPLED_BYTES))
        digest.update(file.read())
    return digest.hexdigest()[:16]


def _publish(scratch: Path, target: Path) -> None:
    """Rename into place; where another process was first, its folder is as good."""
    scratch.chmod(0o755)
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """config.json."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"GGUF architecture {architecture!r} is not supported, only 'llama'")

    def setting(name: str, default: Any = None) -> Any:
        value = metadata.get(f"llama.{name}", default)
        if value is None:
            raise ModelError(f"the GGUF file lacks llama.{name}")
        return value

    if setting("expert_count", 0):
        raise ModelError("GGUF models with experts are not supported")
    heads, hidden = setting("attention.head_count"), setting("embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden,
        "intermediate_size": setting("feed_forward_length"),
        "num_hidden_layers": setting("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": setting("attention.head_count_kv", heads),
        "head_dim": setting("attention.key_length", hidden // heads),
        "max_position_embeddings": setting("context_length"),
        "rms_norm_eps": setting("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(metadata, tensors, setting("rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "hidden_act": "silu",
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def _rope(metadata: Mapping[str, Any], tensors: Mapping[str, Any], theta: float) -> dict[str, Any]:
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        factor = metadata["llama.rope.scaling.factor"]
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind != "none":
        raise ModelError(f"GGUF rotary scaling {kind!r} is not supported")
    if "rope_freqs.weight" in tensors:
        return _llama3_rope(_dequantised(tensors["rope_freqs.weight"]), theta)
    return {"rope_type": "default", "rope_theta": theta}


def _llama3_rope(divisors: Floats, theta: float) -> dict[str, Any]:
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


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(metadata),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _write_weights(
    folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any], progress: Progress
) -> None:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    writer = ShardWriter(folder)
    for done, (name, tensor) in enumerate(tensors.items(), start=1):
        if name != "rope_freqs.weight":
            values = _dequantised(tensor)
            kind = name.rsplit(".", 2)[-2]
            if kind in heads:
                values = _halves_from_pairs(values, heads[kind])
            writer.add(_layout_name(name), values)
        progress("converting GGUF weights", done / len(tensors))
    writer.close()


def _layout_name(name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight"""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    known = _TENSORS.get(match[2]) if match else None
    if match is None or known is None:
        raise ModelError(f"the GGUF file holds a tensor that Llama models do not have: {name}")
    prefix = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{prefix}{known}.{match[3]}"


def _dequantised(tensor: Any) -> Floats:
    from gguf.quants import dequantize

    try:
        return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError as error:
        raise ModelError(f"{tensor.name}: {error}") from error


def _halves_from_pairs(values: Floats, heads: int) -> Floats:
    """Rotary pairs lie side by side in GGUF, half a head apart in the Hugging Face layout."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
