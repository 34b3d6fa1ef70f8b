"""What a checkpoint's JSON files say about a model.

Knows: the Hugging Face names of settings that families share, and which values this worker can
honour. Does not know: what is special about a family (its own file), weights, tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider_worker.model.config import Fp8Blocks, ModelConfig, ModelError
from outrider_worker.model.registry import find_architecture
from outrider_worker.model.rope_json import parse_rope
from outrider_worker.model.settings_json import JsonSettings


def read_config(folder: Path) -> ModelConfig:
    """Parse config.json and generation_config.json of a Hugging Face folder.

    Raises ModelError naming the missing, malformed or unsupported setting.
    """
    raw = read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    return parse_config(raw, generation)


def parse_config(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig in the two files' contents."""
    architecture = _architecture(raw)
    configure = find_architecture(architecture).configure
    settings = JsonSettings(raw)
    heads, hidden = settings.count("num_attention_heads"), settings.count("hidden_size")
    _require_silu(settings)
    rope_theta, rope_scaling = parse_rope(settings)
    mtp_layers = settings.count("num_mtp_layers", 0, least=0)
    common = ModelConfig(
        architecture=architecture,
        vocab_size=settings.count("vocab_size"),
        hidden_size=hidden,
        ffn_size=settings.count("intermediate_size"),
        layers=settings.count("num_hidden_layers"),
        query_heads=heads,
        kv_heads=settings.count("num_key_value_heads", heads),
        head_dim=settings.count("head_dim", max(1, hidden // heads)),
        max_positions=settings.count("max_position_embeddings"),
        rms_eps=settings.number("rms_norm_eps", 1e-6, above=0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_embeddings=settings.flag("tie_word_embeddings", False),
        bos_id=_first(_ids("bos_token_id", generation, raw)),
        eos_ids=_ids("eos_token_id", generation, raw),
        mtp_layers=settings.count("num_nextn_predict_layers", mtp_layers, least=0),
        quantisation=_quantisation(raw),
    )
    return _checked(configure(common, settings))


def _checked(config: ModelConfig) -> ModelConfig:
    """Raises ModelError for settings that contradict one another."""
    if config.query_heads % config.kv_heads:
        raise ModelError(
            f"{config.query_heads} query heads cannot share {config.kv_heads} key/value heads"
        )
    if config.head_dim % 2:
        raise ModelError(f"rotary embedding needs an even head size, not {config.head_dim}")
    special_ids = (config.bos_id, *config.eos_ids)
    outside = [i for i in special_ids if i is not None and not 0 <= i < config.vocab_size]
    if outside:
        raise ModelError(f"token ids {outside} are outside of a vocabulary of {config.vocab_size}")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ModelError where there is none."""
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


def _require_silu(settings: JsonSettings) -> None:
    activation = settings.values.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise ModelError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")


def _quantisation(raw: Mapping[str, Any]) -> Fp8Blocks | None:
    """How weights are stored, where not as plain numbers."""
    quantisation = raw.get("quantization_config")
    if quantisation is None:
        return None
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
    if method != "fp8":
        raise ModelError(f"config.json: quantisation {method!r} is not supported, only 'fp8'")
    block, form = quantisation.get("weight_block_size"), quantisation.get("fmt", "e4m3")
    if form != "e4m3":
        raise ModelError(f"config.json: FP8 weights in {form!r} are not supported, only 'e4m3'")
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return Fp8Blocks(rows, columns)
    raise ModelError(
        f"config.json: FP8 weights need weight_block_size [rows, columns], not {block!r}"
    )


def _ids(name: str, *sources: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids of the first source that has them: one id, a list, or none."""
    for source in sources:
        value = source.get(name)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            if not all(type(token) is int for token in values):
                raise ModelError(f"{name} must hold token ids, not {value!r}")
            return tuple(values)
    return ()


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
