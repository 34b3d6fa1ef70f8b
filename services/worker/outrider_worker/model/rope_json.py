"""What a config.json says about rotary embedding.

Knows: `rope_parameters` (transformers 5), and the older `rope_theta` and `rope_scaling`.
Does not know: how frequencies are worked out (rotary).
"""

from __future__ import annotations

from typing import Any

from outrider_worker.model.config import ModelError
from outrider_worker.model.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
)
from outrider_worker.model.settings_json import JsonSettings


def parse_rope(settings: JsonSettings) -> tuple[float, RopeScaling | None]:
    """Base of the frequencies and how they are scaled.

    Raises ModelError for a method that is unknown, lacks a setting, or differs between layers.
    """
    rope = _rope_settings(settings)
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    theta = rope.number("rope_theta", settings.number("rope_theta", 10_000.0), above=1)
    for share in (rope, settings):
        if share.number("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError("config.json: partial_rotary_factor is not supported")
    return theta, _scaling(kind, rope, settings)


def _rope_settings(settings: JsonSettings) -> JsonSettings:
    values = settings.values.get("rope_scaling") or settings.values.get("rope_parameters") or {}
    if not isinstance(values, dict):
        raise ModelError(f"config.json: rotary settings must be an object, not {values!r}")
    if any(isinstance(value, dict) for value in values.values()):
        raise ModelError("config.json: rotary settings that differ by layer are not supported")
    return JsonSettings(values)


def _scaling(kind: Any, rope: JsonSettings, settings: JsonSettings) -> RopeScaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor", above=0))
        case "llama3":
            return _llama3(rope, settings)
        case "yarn":
            return _yarn(rope, settings)
    raise ModelError(
        f"config.json: rotary scaling {kind!r} is not supported: only linear, llama3, yarn"
    )


def _llama3(rope: JsonSettings, settings: JsonSettings) -> Llama3Scaling:
    low = rope.number("low_freq_factor", above=0)
    return Llama3Scaling(
        factor=rope.number("factor", above=0),
        low_freq_factor=low,
        high_freq_factor=rope.number("high_freq_factor", above=low),
        original_max_positions=_original_positions(rope, settings),
    )


def _yarn(rope: JsonSettings, settings: JsonSettings) -> YarnScaling:
    original = _original_positions(rope, settings)
    stretched = settings.count("max_position_embeddings") / original
    given = rope.values.get("attention_factor") is not None
    return YarnScaling(
        factor=rope.number("factor", stretched, above=0),
        original_max_positions=original,
        beta_fast=rope.number("beta_fast", 32.0, above=0),
        beta_slow=rope.number("beta_slow", 1.0, above=0),
        mscale=rope.number("mscale", 0.0),
        mscale_all_dim=rope.number("mscale_all_dim", 0.0),
        attention_factor=rope.number("attention_factor", above=0) if given else None,
        truncate=rope.flag("truncate", True),
    )


def _original_positions(rope: JsonSettings, settings: JsonSettings) -> int:
    """Positions the model was first trained on."""
    name = "original_max_position_embeddings"
    own = rope.count(name, settings.count("max_position_embeddings"))
    return settings.count(name, own)
