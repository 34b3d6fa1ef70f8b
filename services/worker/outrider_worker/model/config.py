"""What a checkpoint's JSON files say about a model.

Knows: the Hugging Face names of hyper-parameters, and which values this worker can honour.
Does not know: weights, tokenizers, tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(Exception):
    """A model cannot be found, read or run; the message names what is wrong."""


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama-3's rotary scaling: long wavelengths are stretched, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class LinearScaling:
    """All positions divided by one factor."""

    factor: float


RopeScaling = Llama3Scaling | LinearScaling


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters of one decoder."""

    architecture: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Every token that ends a text."""

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise ModelError(
                f"{self.query_heads} query heads cannot share {self.kv_heads} key/value heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"rotary embedding needs an even head size, not {self.head_dim}")


def read_config(folder: Path) -> ModelConfig:
    """Parse config.json and generation_config.json of a Hugging Face folder.

    Raises ModelError naming the missing, malformed or unsupported setting.
    """
    raw = _read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.is_file() else {}
    return parse_config(raw, generation)


def parse_config(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig in the two files' contents."""
    heads = _positive(raw, "num_attention_heads")
    hidden = _positive(raw, "hidden_size")
    _require_silu(raw)
    return ModelConfig(
        architecture=_architecture(raw),
        vocab_size=_positive(raw, "vocab_size"),
        hidden_size=hidden,
        ffn_size=_positive(raw, "intermediate_size"),
        layers=_positive(raw, "num_hidden_layers"),
        query_heads=heads,
        kv_heads=_positive(raw, "num_key_value_heads", default=heads),
        head_dim=_positive(raw, "head_dim", default=hidden // heads),
        max_positions=_positive(raw, "max_position_embeddings"),
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope(raw).get("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(_rope(raw), raw),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        bos_id=_first(_ids("bos_token_id", generation, raw)),
        eos_ids=_ids("eos_token_id", generation, raw),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError("config.json names no architecture")
    return names[0]


def _positive(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json: {name} must be a positive whole number, not {value!r}")
    return value


def _require_silu(raw: Mapping[str, Any]) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings: `rope_parameters` (transformers 5), or the older two top-level keys."""
    parameters = raw.get("rope_parameters")
    if isinstance(parameters, dict):
        return parameters
    scaling = raw.get("rope_scaling")
    return {"rope_theta": raw.get("rope_theta", 10_000.0), **(scaling or {})}


def _rope_scaling(rope: Mapping[str, Any], raw: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return LinearScaling(float(rope["factor"]))
        if kind == "llama3":
            return Llama3Scaling(
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_max_positions=int(
                    rope.get("original_max_position_embeddings", raw["max_position_embeddings"])
                ),
            )
    except KeyError as missing:
        raise ModelError(f"config.json: {kind} rotary scaling lacks {missing}") from None
    raise ModelError(f"config.json: rotary scaling {kind!r} is not supported: only linear, llama3")


def _ids(name: str, *sources: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids of the first source that has them: one id, a list, or none."""
    for source in sources:
        value = source.get(name)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(token, int) for token in values):
                raise ModelError(f"{name} must hold token ids, not {value!r}")
            return tuple(values)
    return ()


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
