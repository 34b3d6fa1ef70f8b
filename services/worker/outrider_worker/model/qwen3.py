"""Qwen3 (Yang et al. 2025): each head's query and key are normalised; upper layers may slide."""

from __future__ import annotations

from dataclasses import replace

from outrider_worker.model.config import ModelConfig
from outrider_worker.model.settings_json import JsonSettings
from outrider_worker.model.windows import optional_window, with_window


def configure(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """What a Qwen3's config.json says beside what all families share."""
    sized = replace(common, head_dim=settings.count("head_dim", 128))
    first_sliding = settings.count("max_window_layers", 28, least=0)
    window = optional_window(settings)
    return with_window(with_normed_heads(sized, settings), settings, window, first_sliding)


def with_normed_heads(config: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """What sets the attention of all Qwen3 models apart, with experts or without."""
    bias = settings.flag("attention_bias", False)
    return replace(config, attention_bias=bias, attention_out_bias=bias, qk_norm=True)
