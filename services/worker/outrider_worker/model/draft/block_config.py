"""What the config.json of a block drafter says: DFlash, and DSpark, which is DFlash with heads.

Knows: the layouts in which these files are published, and the counting of layers in each.
Does not know: tensors, files but this one, how a block is run.

Layouts: settings at the top or inside `dflash_config` (z-lab, SpecForge), at the top (DeepSpec),
around a `transformer_layer_config` that is written as differences from Qwen3's defaults
(speculators).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.config_json import parse_config, read_json
from outrider_worker.model.settings_json import JsonSettings

_LAYERS = "Qwen3ForCausalLM"
"""The architecture whose layers all published block drafters have, whatever their target is."""

_QWEN3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
}
_NESTED = ("dflash_config", "dspark_config")
_PROJECTORS = ("dflash", "dspark")
_NEUTRAL = {
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
    "is_causal": False,
    "shift_label": False,
}
"""Settings that change the arithmetic, and the one value of each that leaves it as it is here."""


@dataclass(frozen=True)
class BlockHeads:
    """The heads that make a DSpark."""

    markov_rank: int = 0
    """r; 0 without a Markov head"""
    markov_kind: str = "vanilla"
    confidence: bool = False
    confidence_with_markov: bool = False

    @property
    def present(self) -> bool:
        """Whether there are any."""
        return self.markov_rank > 0 or self.confidence


@dataclass(frozen=True)
class BlockConfig:
    """One block drafter."""

    layers: ModelConfig
    """Of its own layers; `max_positions` covers the target's texts and a block behind them."""
    boundaries: tuple[int, ...]
    """Of the target, see FeatureSpec."""
    block_size: int
    """Rows of a block as it was trained, the anchor's among them."""
    mask_token_id: int
    from_anchor: bool
    """Whether the anchor's row drafts too: row j then predicts the token behind its position.
    Otherwise row j predicts the token *at* its position, which the anchor's row knows already."""
    causal_windows: bool
    """Whether rows of sliding layers see no later row of their block."""
    draft_vocab_size: int | None
    """Entries of a reduced vocabulary; None: the target's."""
    heads: BlockHeads

    @property
    def drafts(self) -> int:
        """How many tokens a whole block drafts."""
        return self.block_size if self.from_anchor else self.block_size - 1

    def rows_for(self, drafts: int) -> int:
        """Rows of a block for so many drafts.

        The published DFlash runs shorter blocks where less is wanted. A DSpark is run whole: its
        heads were calibrated so, and engines that shortened it saw its acceptance fall.
        """
        return self.block_size if self.from_anchor else drafts + 1


def read_block_config(folder: Path, target: ModelConfig) -> BlockConfig:
    """The config.json in `folder`, for a drafter of `target`.

    Raises ModelError for what is missing, malformed, not supported or made for another target.
    """
    return parse_block_config(read_json(folder / "config.json"), target)


def parse_block_config(raw: Mapping[str, Any], target: ModelConfig) -> BlockConfig:
    """See read_block_config."""
    settings = JsonSettings(_flat(raw))
    settings.choice("projector_type", _PROJECTORS, _PROJECTORS[0])
    _refuse_other_arithmetic(settings)
    layers = _layers(raw, settings)
    vocab = settings.count("draft_vocab_size", layers.vocab_size)
    config = BlockConfig(
        layers=layers,
        boundaries=_boundaries(settings, layers.layers, target.layers),
        block_size=settings.count("block_size", least=2),
        mask_token_id=settings.count("mask_token_id", least=0),
        from_anchor=settings.flag("sample_from_anchor", _trained_from_anchor(settings)),
        causal_windows=_causal_windows(settings),
        draft_vocab_size=None if vocab == layers.vocab_size else vocab,
        heads=_heads(settings),
    )
    return _fitted(config, settings, target)


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All settings side by side; nested ones count before those at the top."""
    flat = dict(raw)
    for name in _NESTED:
        nested = raw.get(name) or {}
        if not isinstance(nested, dict):
            raise ModelError(f"config.json: {name} must be an object, not {nested!r}")
        flat.update(nested)
    return flat


def _layers(raw: Mapping[str, Any], settings: JsonSettings) -> ModelConfig:
    nested = raw.get("transformer_layer_config")
    if nested is not None and not isinstance(nested, dict):
        raise ModelError(f"config.json: transformer_layer_config is no object: {nested!r}")
    source = settings.values if nested is None else {**_QWEN3_DEFAULTS, **nested}
    return parse_config({**source, "architectures": [_LAYERS]}, {})


def _is_speculators(settings: JsonSettings) -> bool:
    return "speculators_model_type" in settings.values


def _trained_from_anchor(settings: JsonSettings) -> bool:
    """What a file that does not say so means.

    DeepSpec's class and SpecForge's DSpark train the anchor's row; DFlash does not, nor did the
    speculators library before its files had the flag.
    """
    names = settings.values.get("architectures") or [""]
    deepspec = str(names[0]).endswith("DSparkModel")
    nested = settings.values.get("projector_type") == "dspark"
    return (deepspec or nested) and not _is_speculators(settings)


def _causal_windows(settings: JsonSettings) -> bool:
    """Sliding layers are, unless z-lab's `is_causal` or the flag of speculators says no."""
    if _is_speculators(settings):
        return not settings.flag("sliding_window_non_causal", False)
    return settings.values.get("is_causal") is None


def _boundaries(settings: JsonSettings, draft_layers: int, target_layers: int) -> tuple[int, ...]:
    """Ids name the layer whose output is read; speculators counts from the embedding instead."""
    if _is_speculators(settings):
        found = settings.numbers("aux_hidden_state_layer_ids")
    else:
        found = [layer + 1 for layer in settings.numbers("target_layer_ids")]
        found = found or _spread(draft_layers, target_layers)
    inside = all(0 <= boundary <= target_layers for boundary in found)
    if not found or not inside or sorted(set(found)) != found:
        raise ModelError(
            f"config.json: features after layers {found} are not {target_layers} layers' in order"
        )
    return tuple(found)


def _spread(draft_layers: int, target_layers: int) -> list[int]:
    """The published default: as many as the drafter has layers, from layer 1 to the last but two.

    Source: z-lab/dflash, layers of the target where the configuration names none.
    """
    if draft_layers == 1:
        return [target_layers // 2 + 1]
    step = (target_layers - 4) / (draft_layers - 1)
    return [round(1 + place * step) + 1 for place in range(draft_layers)]


def _heads(settings: JsonSettings) -> BlockHeads:
    rank = settings.count("markov_rank", 0, least=0)
    confidence = settings.flag("enable_confidence_head", False)
    with_markov = confidence and settings.flag("confidence_head_with_markov", False)
    if with_markov and not rank:
        raise ModelError("config.json: confidence_head_with_markov needs a markov_rank")
    kind = settings.choice("markov_head_type", ("vanilla", "gated", "rnn"), "vanilla")
    return BlockHeads(rank, kind, confidence, with_markov)


def _refuse_other_arithmetic(settings: JsonSettings) -> None:
    for name, neutral in _NEUTRAL.items():
        value = settings.values.get(name)
        if value is not None and value != neutral:
            raise ModelError(f"config.json: {name} {value!r} is not supported in a block drafter")


def _fitted(config: BlockConfig, settings: JsonSettings, target: ModelConfig) -> BlockConfig:
    """With room for the target's positions. Raises ModelError if it is another target's."""
    wanted = {
        "layers": (settings.count("num_target_layers", target.layers), target.layers),
        "hidden size": (
            settings.count("target_hidden_size", target.hidden_size),
            target.hidden_size,
        ),
        "vocabulary": (config.layers.vocab_size, target.vocab_size),
    }
    for what, (drafter, own) in wanted.items():
        if drafter != own:
            raise ModelError(f"the drafter is for a target of {what} {drafter}, this one has {own}")
    if config.mask_token_id >= target.vocab_size:
        raise ModelError(
            f"config.json: mask_token_id {config.mask_token_id} is outside of the target's "
            f"vocabulary of {target.vocab_size}"
        )
    longest = max(config.layers.max_positions, target.max_positions) + config.block_size
    return replace(config, layers=replace(config.layers, max_positions=longest))
