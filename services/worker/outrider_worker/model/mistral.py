"""Mistral (Jiang et al. 2023): no biases, and in older versions a sliding window in every layer."""

from __future__ import annotations

from outrider_worker.model.config import ModelConfig
from outrider_worker.model.settings_json import JsonSettings
from outrider_worker.model.windows import with_window


def configure(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """What a Mistral's config.json says beside what all families share."""
    return with_window(common, settings, settings.count_or_none("sliding_window", 4096))
