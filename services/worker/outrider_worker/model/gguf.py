"""GGUF files of Llama-type models, turned once into folders in the Hugging Face layout.

Knows: GGUF's names for tensors, the rotary order of its q and k, the cache folder.
Does not know: settings (gguf_config), how models run. Weights are written dequantised, in float32,
exactly.

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

from outrider_worker.cache import one_at_a_time, user_cache
from outrider_worker.model.config import ModelError
from outrider_worker.model.gguf_config import ROPE_DIVISORS, generation_config, model_config
from outrider_worker.model.gguf_tokenizer import write_tokenizer
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
    """The folder that `path` converts to; made on first use, by one process, found again later.

    It appears whole or not at all: it is written beside its place and renamed.
    Raises ModelError for a broken file, another architecture, or an unknown tokenizer.
    """
    target = models_folder() / f"{path.stem}-{_fingerprint(path)}"
    with one_at_a_time(target):
        if not target.is_dir():
            _convert_into(target, path, progress)
    return target


def _convert_into(target: Path, path: Path, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep_abandoned(target)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        convert(path, scratch, progress)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
    config = model_config(metadata, tensors, _rope_divisors(tensors))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(metadata))
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


def _write_weights(
    folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any], progress: Progress
) -> None:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    writer = ShardWriter(folder)
    for done, (name, tensor) in enumerate(tensors.items(), start=1):
        if name != ROPE_DIVISORS:
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


def _rope_divisors(tensors: Mapping[str, Any]) -> Floats | None:
    return _dequantised(tensors[ROPE_DIVISORS]) if ROPE_DIVISORS in tensors else None


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
