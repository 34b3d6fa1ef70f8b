"""The published layouts of block drafters, one tiny drafter each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_block_drafters import BLOCK, LAYER_SETTINGS, MASK_ID, RANK, TAPS, TinyBlock

_BLOCK: Mapping[str, Any] = {
    "block_size": BLOCK,
    "mask_token_id": MASK_ID,
    "target_layer_ids": list(TAPS),
}
_ZLAB = {**LAYER_SETTINGS, "architectures": ["DFlashDraftModel"], "num_target_layers": 2}
_DEEPSPEC = {
    **LAYER_SETTINGS,
    **_BLOCK,
    "architectures": ["Qwen3DSparkModel"],
    "num_target_layers": 2,
    "num_anchors": 8,
    "tie_word_embeddings": False,
    "layer_types": ["full_attention"] * 2,
}
_TABLES = ("embed_tokens.weight", "lm_head.weight")


def deepspec(
    markov: str = "vanilla", confidence: bool = True, with_markov: bool = True, **more: Any
) -> TinyBlock:
    """DeepSpec's class, with the heads that are named and copies of the target's tables."""
    settings = {
        **_DEEPSPEC,
        "markov_rank": RANK if markov else 0,
        "enable_confidence_head": confidence,
    }
    if markov:
        settings["markov_head_type"] = markov
    if confidence:
        settings["confidence_head_with_markov"] = with_markov
    return TinyBlock(
        settings,
        from_anchor=True,
        markov=markov,
        confidence=confidence,
        confidence_with_markov=confidence and with_markov,
        copies=_TABLES,
        **more,
    )


def sliding(causal: bool, window: int) -> TinyBlock:
    """z-lab's, all layers sliding."""
    settings = {
        **_ZLAB,
        "layer_types": ["sliding_attention"] * 2,
        "use_sliding_window": True,
        "sliding_window": window,
        "dflash_config": dict(_BLOCK),
        **({} if causal else {"is_causal": False}),
    }
    return TinyBlock(settings, from_anchor=False, window=window, causal_windows=causal)


def speculators(kind: str, drafted: int, from_anchor: bool | None = None) -> TinyBlock:
    """The speculators library's: a reduced vocabulary, layers counted from the embedding."""
    settings: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": kind,
        "block_size": BLOCK,
        "mask_token_id": MASK_ID,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "draft_vocab_size": drafted,
        "target_hidden_size": None,
        "sliding_window_non_causal": False,
        "transformer_layer_config": dict(LAYER_SETTINGS),
        "speculators_config": {"algorithm": kind},
    }
    if from_anchor is not None:
        settings["sample_from_anchor"] = from_anchor
    if kind == "dflash":
        return TinyBlock(settings, from_anchor=bool(from_anchor), drafted=drafted)
    settings |= {
        "markov_rank": RANK,
        "markov_head_type": "gated",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return TinyBlock(
        settings,
        from_anchor=bool(from_anchor),
        markov="gated",
        confidence=True,
        confidence_with_markov=True,
        drafted=drafted,
    )


DFLASH: Mapping[str, TinyBlock] = {
    "z-lab, nested": TinyBlock({**_ZLAB, "dflash_config": dict(_BLOCK)}, from_anchor=False),
    "z-lab, flat, prefixed": TinyBlock({**_ZLAB, **_BLOCK}, from_anchor=False, prefix="model."),
    "fused products": TinyBlock({**_ZLAB, **_BLOCK}, from_anchor=False, fused=True),
    "speculators": speculators("dflash", drafted=86),
    "speculators, from the anchor": speculators("dflash", drafted=259, from_anchor=True),
    "DeepSpec without heads": deepspec(markov="", confidence=False),
    "sliding, causal": sliding(causal=True, window=9),
    "sliding, bidirectional": sliding(causal=False, window=9),
}
DSPARK: Mapping[str, TinyBlock] = {
    "DeepSpec, vanilla": deepspec(),
    "DeepSpec, gated": deepspec("gated", with_markov=False),
    "DeepSpec, rnn, calibrated": deepspec("rnn", temperatures=(0.5, 2.0, 1.0, 3.0)),
    "DeepSpec, no Markov head": deepspec("", with_markov=False),
    "DeepSpec, no confidence head": deepspec(confidence=False),
    "SpecForge": TinyBlock(
        {
            **_ZLAB,
            "block_size": BLOCK,
            "dflash_config": {
                **_BLOCK,
                "projector_type": "dspark",
                "markov_rank": RANK,
                "markov_head_type": "vanilla",
                "enable_confidence_head": True,
                "confidence_head_with_markov": True,
            },
        },
        from_anchor=True,
        markov="vanilla",
        confidence=True,
        confidence_with_markov=True,
    ),
    "speculators": speculators("dspark", drafted=86, from_anchor=True),
    "speculators, before the flag": speculators("dspark", drafted=86),
    "under mtp.": deepspec(prefix="mtp."),
}
