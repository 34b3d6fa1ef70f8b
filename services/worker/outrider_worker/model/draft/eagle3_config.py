"""What the config.json of an EAGLE-3 checkpoint says.

Knows: where the published layouts (SafeAILab, SpecForge, speculators, DeepSpec) put each setting,
and how they count the target's layers. Does not know: tensors, files.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.config_json import parse_config
from outrider_worker.model.settings_json import JsonSettings

_INPUTS_OR_OUTPUTS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
_OUTPUTS = "target_layer_ids"
_ATTENTION, _FFN = "model.layers.0.self_attn", "model.layers.0.mlp"


@dataclass(frozen=True)
class Eagle3Config:
    """A head's settings."""

    layers: ModelConfig
    """Of its layers; `vocab_size` is that of its embedding."""
    boundaries: tuple[int, ...]
    """Of the target, m of them: see CausalLM.forward_with_features."""
    draft_vocab_size: int
    norm_before_residual: bool
    """Whether the residual stream starts from the hidden state behind its norm."""
    norm_output: bool
    """Whether the hidden state is carried on behind the last norm."""
    fc_norm: bool
    """Whether every tap has a norm of its own."""
    norm_before_fc: bool
    """Whether all taps side by side have one norm."""


def parse_eagle3(
    raw: Mapping[str, Any], names: Container[str], target: ModelConfig
) -> Eagle3Config:
    """The settings in a config.json; `names` are ours of the tensors, which tell what is optional.

    Raises ModelError naming the setting that is missing, malformed or unfit for the target.
    """
    layers = _layers(_nested(raw, "transformer_layer_config") or raw, raw, names, target)
    settings = JsonSettings({**_nested(raw, "eagle_config"), **raw})
    if settings.count("target_hidden_size", target.hidden_size) != target.hidden_size:
        raise ModelError(
            f"config.json: made for a target of hidden size {settings.values['target_hidden_size']}"
            f", this one has {target.hidden_size}"
        )
    return Eagle3Config(
        layers=layers,
        boundaries=tap_boundaries(settings, target.layers),
        draft_vocab_size=settings.count("draft_vocab_size", layers.vocab_size),
        norm_before_residual=settings.flag("norm_before_residual", False),
        norm_output=settings.flag("norm_output", False),
        fc_norm=settings.flag("fc_norm", False),
        norm_before_fc=settings.flag("norm_before_fc", False),
    )


def tap_boundaries(settings: JsonSettings, target_layers: int) -> tuple[int, ...]:
    """Where features are taken, counted in blocks of the target that lie before.

    Files count in two ways, by the layer whose output is meant (DeepSpec always; the others when
    the first id is 1) or by the one whose input is. Without ids the reference's taps are meant: the
    inputs of layers 2, N/2 and N − 3 (Li et al. 2025, section 3.1, and its code).
    Raises ModelError for a place that the target does not have.
    """
    of_outputs = settings.numbers(_OUTPUTS)
    either = next((ids for key in _INPUTS_OR_OUTPUTS if (ids := settings.numbers(key))), [])
    if of_outputs and not either:
        boundaries = [layer + 1 for layer in of_outputs]
    elif either:
        boundaries = [layer + (either[0] == 1) for layer in either]
    else:
        boundaries = [2, target_layers // 2, target_layers - 3]
    if not all(0 <= boundary <= target_layers for boundary in boundaries):
        raise ModelError(
            f"hidden states after {list(boundaries)} blocks are asked for, "
            f"the target has {target_layers}"
        )
    return tuple(boundaries)


def _nested(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Settings inside settings; none where they are missing."""
    value = raw.get(name) or {}
    if not isinstance(value, dict):
        raise ModelError(f"config.json: {name} must be an object, not {value!r}")
    return value


def _layers(
    nested: Mapping[str, Any],
    raw: Mapping[str, Any],
    names: Container[str],
    target: ModelConfig,
) -> ModelConfig:
    """The layers' settings. Heads are Llama-like, with what else their tensors show."""
    config = parse_config(
        {
            "max_position_embeddings": target.max_positions,
            "vocab_size": target.vocab_size,
            "num_hidden_layers": 1,
            "quantization_config": raw.get("quantization_config"),
            **{key: value for key, value in nested.items() if value is not None},
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": None,
            "eos_token_id": None,
        },
        {},
    )
    return replace(
        config,
        attention_bias=f"{_ATTENTION}.q_proj.bias" in names,
        attention_out_bias=f"{_ATTENTION}.o_proj.bias" in names,
        mlp_bias=f"{_FFN}.gate_proj.bias" in names,
        qk_norm=f"{_ATTENTION}.q_norm.weight" in names,
        **_sliding(JsonSettings(nested), config.layers),
    )


def _sliding(settings: JsonSettings, layers: int) -> dict[str, Any]:
    """The window of the layers that have one, as fields of a ModelConfig."""
    kinds = settings.values.get("layer_types") or []
    slides = tuple(kind == "sliding_attention" for kind in kinds[:layers])
    if not any(slides):
        return {}
    if len(slides) < layers:
        raise ModelError(f"config.json: layer_types names {len(slides)} of {layers} layers")
    return {"sliding_window": settings.count("sliding_window"), "sliding_layers": slides}
