"""A trained head as a checkpoint that `speculate.checkpoints.open_drafter` loads.

Tensors have the names of the published layouts, in float16. config.json says what EAGLE-3's loader
needs, and of every head what it was made for.

Knows: files. Does not know: how heads are trained or run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outrider_worker.identity import model_digest
from outrider_worker.train.files import whole_file
from outrider_worker.train.heads import TrainedHead
from outrider_worker.train.kinds import Kind, eagle3_taps
from outrider_worker.train.target import TargetWeights
from outrider_worker.train.vocabulary import kept_mask, offsets

_SHAPE_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
    "hidden_act", "vocab_size",
)  # fmt: skip


def export(
    head: TrainedHead, kind: Kind, target: TargetWeights, made_for: Path, folder: Path
) -> None:
    """Write model.safetensors and config.json into `folder`; `made_for` is the target's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    kept_ids = head.get_buffer("kept_ids").cpu()
    tensors = {
        name: weight.detach().to("cpu", torch.float16).contiguous()
        for name, weight in head.published().items()
    }
    tensors["d2t"] = offsets(kept_ids)
    tensors["t2d"] = kept_mask(kept_ids, target.config.vocab_size)
    with whole_file(folder / "model.safetensors") as beside:
        save_file(tensors, beside, metadata={"format": "pt"})
        beside.chmod(0o644)  # the library leaves it to its owner, and who serves may be another
    raw = json.loads((made_for / "config.json").read_text(encoding="utf-8"))
    config = {**_config(kind, target, raw, len(kept_ids)), "target_digest": model_digest(made_for)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _config(
    kind: Kind, target: TargetWeights, raw: Mapping[str, Any], draft_vocab: int
) -> dict[str, Any]:
    shared = {key: raw[key] for key in _SHAPE_KEYS if key in raw}
    layers = target.config.layers
    config = {
        **shared,
        "drafter": kind.name,
        "draft_vocab_size": draft_vocab,
        "target_num_hidden_layers": layers,
        "target_hidden_size": target.config.hidden_size,
    }
    if kind.taps:
        return {
            **config,
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(eagle3_taps(layers))},
        }
    return {**config, "num_nextn_predict_layers": 1, "draft_head": "rows of the target's"}
