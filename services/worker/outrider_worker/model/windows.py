"""What a config.json says about sliding windows.

Knows: which layers slide, by list or by index. Does not know: what else differs in a family.
"""

from __future__ import annotations

from dataclasses import replace

from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.settings_json import JsonSettings

_KINDS = {"sliding_attention": True, "full_attention": False}


def optional_window(settings: JsonSettings) -> int | None:
    """The window of a family in which it is off unless `use_sliding_window` says otherwise."""
    window = settings.count_or_none("sliding_window", 4096)
    return window if settings.flag("use_sliding_window", False) else None


def with_window(
    config: ModelConfig, settings: JsonSettings, window: int | None, first_sliding: int = 0
) -> ModelConfig:
    """`config` with `window` in the layers of `layer_types`, else from `first_sliding` on.

    Raises ModelError for a kind of attention that is unknown, and for a window that is missing.
    """
    sliding = _listed(config, settings)
    if sliding is None:
        sliding = tuple(layer >= first_sliding for layer in range(config.layers))
    elif any(sliding) and window is None:
        raise ModelError("config.json: layer_types has sliding layers, but no window is set")
    if window is None or not any(sliding):
        return config
    layers = None if all(sliding) else sliding
    return replace(config, sliding_window=window, sliding_layers=layers)


def _listed(config: ModelConfig, settings: JsonSettings) -> tuple[bool, ...] | None:
    kinds = settings.values.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != config.layers:
        raise ModelError(f"config.json: layer_types must list {config.layers} layers")
    unknown = sorted({str(kind) for kind in kinds} - _KINDS.keys())
    if unknown:
        raise ModelError(f"config.json: layer_types {unknown} are not supported")
    return tuple(_KINDS[kind] for kind in kinds)
