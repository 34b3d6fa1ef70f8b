"""Llama (Touvron et al. 2023): also Llama 3 and SmolLM2.

The plain decoder: grouped-query attention, gated feed-forward, biases where the settings say so.
"""

from __future__ import annotations

from dataclasses import replace

from outrider_worker.model.config import ModelConfig
from outrider_worker.model.settings_json import JsonSettings


def configure(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """What a Llama's config.json says beside what all families share."""
    bias = settings.flag("attention_bias", False)
    return replace(
        common,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
    )
