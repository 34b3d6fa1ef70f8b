"""Tiny checkpoints of drafting heads with random weights, in the layouts that are published.

Weights are made under plain names (see plain_heads) and renamed on the way to the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider_worker.model.config_json import parse_config
from outrider_worker.model.registry import find_architecture
from tests.support.plain_heads import PlainEagle3, PlainModule, PlainTables
from tests.support.tiny_models import random_weights

Tensors = dict[str, Tensor]

DRAFT_SETTINGS: Mapping[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 2048,
    "vocab_size": 259,
    "hidden_act": "silu",
}
"""Of an EAGLE-3 head: other heads and another base of frequencies than the target's."""


def write_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """A folder with config.json and one file of tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def doubled(tensors: Mapping[str, Tensor]) -> Tensors:
    """In the precision that references compute in."""
    return {name: tensor.double() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class MtpWeights:
    """One module: enorm, hnorm, eh_proj, norm, and its layer."""

    parts: Tensors
    layer: Tensors

    @classmethod
    def random(cls, settings: Mapping[str, Any], seed: int) -> MtpWeights:
        """A module with the layer of the model that config.json describes."""
        d = settings["hidden_size"]
        shapes = {f"{norm}.weight": (d,) for norm in ("enorm", "hnorm", "norm")}
        parts = random_weights({**shapes, "eh_proj.weight": (d, 2 * d)}, seed)
        return cls(parts, random_layer(settings, seed + 1))

    def plain(self, settings: Mapping[str, Any], tables: PlainTables, **habits: Any) -> PlainModule:
        """The reference."""
        return PlainModule(doubled(self.parts), doubled(self.layer), settings, tables, **habits)


def random_layer(settings: Mapping[str, Any], seed: int) -> Tensors:
    """The one layer of a model, with experts if it has any."""
    one = {**settings, "num_hidden_layers": 1, "first_k_dense_replace": 0}
    config = parse_config(one, {})
    shapes = find_architecture(config.architecture).tensor_shapes(config)
    start = "model.layers.0."
    weights = random_weights({n: s for n, s in shapes.items() if n.startswith(start)}, seed)
    return {name.removeprefix(start): tensor for name, tensor in weights.items()}


Layout = Callable[[int, MtpWeights], Tensors]
"""From a module's number and weights to what is stored."""


def deepseek_layout(first: int) -> Layout:
    """DeepSeek-V3, GLM-4.5: layers behind the model's own `first` ones; 0 in a NextN export."""

    def stored(module: int, weights: MtpWeights) -> Tensors:
        parts = {
            n.replace("norm.", "shared_head.norm.", n == "norm.weight"): t
            for n, t in weights.parts.items()
        }
        prefix = f"model.layers.{first + module}."
        return {prefix + name: tensor for name, tensor in {**parts, **weights.layer}.items()}

    return stored


def qwen_next_layout(module: int, weights: MtpWeights) -> Tensors:
    """Qwen3-Next: norms are stored less one."""
    names = {
        "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
        "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
        "eh_proj.weight": "mtp.fc.weight",
        "norm.weight": "mtp.norm.weight",
    }
    tensors = {names[name]: tensor for name, tensor in weights.parts.items()}
    tensors |= {f"mtp.layers.{module}.{name}": tensor for name, tensor in weights.layer.items()}
    return {
        n: t - 1 if n.endswith("norm.weight") or "_norm_" in n else t for n, t in tensors.items()
    }


def mimo_layout(module: int, weights: MtpWeights) -> Tensors:
    """MiMo."""
    names = {
        "enorm.weight": "token_layernorm.weight",
        "hnorm.weight": "hidden_layernorm.weight",
        "eh_proj.weight": "input_proj.weight",
        "norm.weight": "final_layernorm.weight",
    }
    parts = {names[name]: tensor for name, tensor in weights.parts.items()}
    both = {**parts, **weights.layer}
    return {f"model.mtp_layers.{module}.{name}": tensor for name, tensor in both.items()}


@dataclass(frozen=True)
class Eagle3Weights:
    """Everything around the layers, and the layers; the first one takes two inputs."""

    around: Tensors
    layers: tuple[Tensors, ...]
    draft_vocab_size: int

    @classmethod
    def random(
        cls,
        *,
        taps: int = 3,
        target_size: int = 48,
        draft_vocab_size: int = 100,
        layers: int = 1,
        qk_norm: bool = False,
        seed: int = 7,
        **sizes: int,
    ) -> Eagle3Weights:
        settings = {**DRAFT_SETTINGS, **sizes}
        kind = "Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLM"
        made = [
            random_layer({**settings, "architectures": [kind]}, seed + i) for i in range(layers)
        ]
        d = settings["hidden_size"]
        wide = {
            f"self_attn.{n}_proj.weight": (len(made[0][f"self_attn.{n}_proj.weight"]), 2 * d)
            for n in "qkv"
        }
        made[0] |= random_weights({**wide, "hidden_norm.weight": (d,)}, seed + 10)
        around = {
            "fc.weight": (d, taps * target_size),
            "norm.weight": (d,),
            "lm_head.weight": (draft_vocab_size, d),
        }
        return cls(random_weights(around, seed + 20), tuple(made), draft_vocab_size)

    def kept_ids(self, vocab: int) -> Tensor:
        """Every second token, or all."""
        step = vocab // self.draft_vocab_size
        return torch.arange(self.draft_vocab_size) * step

    def maps(self, vocab: int) -> Tensors:
        """d2t and t2d."""
        kept = self.kept_ids(vocab)
        mask = torch.zeros(vocab, dtype=torch.bool)
        mask[kept] = True
        return {"d2t": kept - torch.arange(len(kept)), "t2d": mask}

    def stored(self, first_layer: str = "midlayer", prefix: str = "") -> Tensors:
        """SafeAILab and SpecForge call the first layer `midlayer`, others `layers.0`."""
        found = {prefix + name: tensor for name, tensor in self.around.items()}
        for index, layer in enumerate(self.layers):
            name = first_layer if index == 0 else f"layers.{index}"
            found |= {f"{prefix}{name}.{rest}": tensor for rest, tensor in layer.items()}
        return found

    def plain(self, tables: PlainTables, **habits: Any) -> PlainEagle3:
        """The reference."""
        layers = [doubled(layer) for layer in self.layers]
        return PlainEagle3(doubled(self.around), layers, DRAFT_SETTINGS, tables, **habits)
