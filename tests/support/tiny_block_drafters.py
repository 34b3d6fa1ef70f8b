"""Tiny block drafters in every published layout, and what they compute, written plainly.

The reference knows one request at a time: no pages, no batch, no shared code with the worker. Names
of tensors are those of z-lab's DFlash files; a layout renames, fuses and adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.support.tiny_models import VOCAB_SIZE, random_weights

BLOCK = 4
MASK_ID = 0
RANK = 5
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 48, 4, 2, 16, 64, 2
TAPS = (0, 1)
"""Layers of the target whose outputs are read: "output of layer" ids."""
EPS, THETA = 1e-5, 10_000.0

LAYER_SETTINGS: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 512,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
}


@dataclass(frozen=True)
class TinyBlock:
    """One drafter: what its layout says and holds."""

    settings: Mapping[str, Any]
    """config.json"""
    from_anchor: bool
    prefix: str = ""
    fused: bool = False
    markov: str = ""
    """"", "vanilla", "gated" or "rnn" """
    confidence: bool = False
    confidence_with_markov: bool = False
    drafted: int = VOCAB_SIZE
    """Tokens of its vocabulary."""
    copies: tuple[str, ...] = ()
    """Tables of the target that the file repeats."""
    window: int | None = None
    causal_windows: bool = True
    temperatures: tuple[float, ...] = ()
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def drafts(self) -> int:
        return BLOCK if self.from_anchor else BLOCK - 1

    def weights(self) -> dict[str, Tensor]:
        """Under z-lab's names."""
        return random_weights(self._shapes(), seed=3)

    def kept_ids(self) -> Tensor:
        """[drafted] tokens of the target, ascending as files have them."""
        return torch.arange(self.drafted) * (VOCAB_SIZE // self.drafted)

    def write(self, folder: Path, target: Mapping[str, Tensor]) -> Path:
        """The files. target: its tables by the names that drafters give them."""
        folder.mkdir(parents=True, exist_ok=True)
        stored = _fused(self.weights()) if self.fused else self.weights()
        stored |= {name: target[name].clone() for name in self.copies} | dict(self.extra)
        if self.drafted != VOCAB_SIZE:
            kept = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
            kept[self.kept_ids()] = True
            stored |= {"d2t": self.kept_ids() - torch.arange(self.drafted), "t2d": kept}
        named = {f"{self.prefix}{name}": tensor.contiguous() for name, tensor in stored.items()}
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.settings), encoding="utf-8")
        if self.temperatures:
            calibration = {"temperatures": list(self.temperatures), "dataset": "none"}
            (folder / "calibration.json").write_text(json.dumps(calibration), encoding="utf-8")
        return folder

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, len(TAPS) * HIDDEN)}
        shapes |= {"hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}
        for layer in range(LAYERS):
            shapes |= {f"layers.{layer}.{n}": shape for n, shape in _LAYER_SHAPES.items()}
        if self.drafted != VOCAB_SIZE:
            shapes["lm_head.weight"] = (self.drafted, HIDDEN)
        if self.markov:
            shapes |= _markov_shapes(self.markov, self.drafted)
        if self.confidence:
            width = HIDDEN + (RANK if self.confidence_with_markov else 0)
            shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
        return shapes


_LAYER_SHAPES = {
    "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "self_attn.q_norm.weight": (HEAD_DIM,),
    "self_attn.k_norm.weight": (HEAD_DIM,),
    "mlp.gate_proj.weight": (FFN, HIDDEN),
    "mlp.up_proj.weight": (FFN, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, FFN),
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
}


def _markov_shapes(kind: str, drafted: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (VOCAB_SIZE, RANK),
        "markov_head.markov_w2.weight": (drafted, RANK),
    }
    if kind == "gated":
        shapes |= {"markov_head.gate_proj.weight": (RANK, HIDDEN + RANK)}
        shapes |= {"markov_head.gate_proj.bias": (RANK,)}
    if kind == "rnn":
        shapes |= {"markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + HIDDEN)}
        shapes |= {"markov_head.joint_proj.bias": (3 * RANK,)}
    return shapes


def _fused(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As some forks store them: one product for q, k and v, one for gate and up."""
    stored = dict(weights)
    for layer in range(LAYERS):
        for whole, parts in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
            block = f"layers.{layer}.{whole.split('.')[0]}"
            pieces = [stored.pop(f"{block}.{part}_proj.weight") for part in parts]
            stored[f"layers.{layer}.{whole}_proj.weight"] = torch.cat(pieces)
    return stored


@dataclass(frozen=True)
class PlainBlock:
    """What a TinyBlock computes for one request."""

    tiny: TinyBlock
    embedding: Tensor
    """[V, d] of the target"""
    head: Tensor
    """[V, d] of the target"""

    def hidden(self, features: Tensor, anchor: int, rows: int) -> Tensor:
        """features [n, F] of all positions before the anchor → [rows, d] of the block."""
        w, before = self.tiny.weights(), len(features)
        context = _norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
        x = self.embedding[torch.tensor([anchor] + [MASK_ID] * (rows - 1))]
        positions = torch.arange(before + rows)
        for layer in range(LAYERS):
            own = {name: w[f"layers.{layer}.{name}"] for name in _LAYER_SHAPES}
            normed = _norm(x, own["input_layernorm.weight"])
            x = x + self._attend(own, normed, context, positions)
            normed = _norm(x, own["post_attention_layernorm.weight"])
            gated = F.silu(normed @ own["mlp.gate_proj.weight"].T)
            gated = gated * (normed @ own["mlp.up_proj.weight"].T)
            x = x + gated @ own["mlp.down_proj.weight"].T
        return _norm(x, w["norm.weight"])

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, d] → [rows, V], −inf for what it does not know."""
        return self._spread(hidden @ self._head().T, float("-inf"))

    def correction(self, hidden: Tensor, before: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [d] of a draft's row, the token before it, state [r] → bias [V], next state."""
        w = {name.removeprefix("markov_head."): t for name, t in self.tiny.weights().items()}
        embedded, latent = w["markov_w1.weight"][before], w["markov_w1.weight"][before]
        if self.tiny.markov == "gated":
            seen = torch.cat([hidden, embedded])
            latent = torch.sigmoid(w["gate_proj.weight"] @ seen + w["gate_proj.bias"]) * embedded
        if self.tiny.markov == "rnn":
            seen = torch.cat([state, embedded, hidden])
            joint = w["joint_proj.weight"] @ seen + w["joint_proj.bias"]
            gate, candidate, output = joint.chunk(3)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
            latent = output.tanh()
        return self._spread((w["markov_w2.weight"] @ latent)[None], 0.0)[0], state

    def confidence(self, hidden: Tensor, before: int, step: int) -> float:
        """Of the draft whose row is hidden [d]."""
        w, seen = self.tiny.weights(), hidden
        if self.tiny.confidence_with_markov:
            seen = torch.cat([hidden, w["markov_head.markov_w1.weight"][before]])
        logit = w["confidence_head.proj.weight"] @ seen + w["confidence_head.proj.bias"]
        temperature = self.tiny.temperatures[step] if self.tiny.temperatures else 1.0
        return float(torch.sigmoid(logit / temperature))

    def _head(self) -> Tensor:
        return self.tiny.weights().get("lm_head.weight", self.head)

    def _spread(self, values: Tensor, filling: float) -> Tensor:
        whole = torch.full((len(values), VOCAB_SIZE), filling)
        whole[:, self.tiny.kept_ids()] = values
        return whole

    def _attend(
        self, own: Mapping[str, Tensor], x: Tensor, context: Tensor, positions: Tensor
    ) -> Tensor:
        q = _heads(x @ own["self_attn.q_proj.weight"].T, own["self_attn.q_norm.weight"])
        both = torch.cat([context, x])
        k = _heads(both @ own["self_attn.k_proj.weight"].T, own["self_attn.k_norm.weight"])
        v = (both @ own["self_attn.v_proj.weight"].T).view(len(both), KV_HEADS, HEAD_DIM)
        q, k = _rotate(q, positions[-len(x) :]), _rotate(k, positions)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for t in (k, v))
        seen = self._visible(positions[-len(x) :, None], positions, len(context))
        mixed = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=seen)
        return mixed.transpose(0, 1).reshape(len(x), -1) @ own["self_attn.o_proj.weight"].T

    def _visible(self, query: Tensor, key: Tensor, anchor: int) -> Tensor:
        """[rows, keys]: all, or what a window lets through."""
        window = self.tiny.window
        if window is None:
            return (key >= 0) & (query >= 0)
        if self.tiny.causal_windows:
            return (key <= query) & (query - key < window)
        return (key >= anchor - window) & (query >= 0)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def _heads(x: Tensor, weight: Tensor) -> Tensor:
    return _norm(x.view(len(x), -1, HEAD_DIM), weight)


def _rotate(x: Tensor, positions: Tensor) -> Tensor:
    """x [rows, heads, D]"""
    angles = positions[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (torch.cat([f, f], -1)[:, None] for f in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
