"""Qwen2 and Qwen2.5 (Yang et al. 2024): q, k and v have biases; upper layers may slide."""

from __future__ import annotations

from dataclasses import replace

from outrider_worker.model.config import ModelConfig
from outrider_worker.model.settings_json import JsonSettings
from outrider_worker.model.windows import optional_window, with_window


def configure(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """What a Qwen2's config.json says beside what all families share."""
    biased = replace(common, attention_bias=True)
    first_sliding = settings.count("max_window_layers", 28, least=0)
    return with_window(biased, settings, optional_window(settings), first_sliding)
