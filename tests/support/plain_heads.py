"""Drafting heads worked out the plain way: one text, from scratch for every draft, in float64.

What the drafters' incremental code is compared with. Weights are given under the names that
checkpoints use inside a layer ("self_attn.q_proj.weight", …); settings are those of config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

Weights = Mapping[str, Tensor]
Settings = Mapping[str, Any]


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def plain_layer(w: Weights, x: Tensor, s: Settings) -> Tensor:
    """[T, d] → [T, d]: an ordinary layer over a whole text."""
    x = x + attention(w, normed(x, w["input_layernorm.weight"], s["rms_norm_eps"]), s)
    return x + feed_forward(
        w, normed(x, w["post_attention_layernorm.weight"], s["rms_norm_eps"]), s
    )


def attention(w: Weights, x: Tensor, s: Settings) -> Tensor:
    return (_latent if "self_attn.kv_b_proj.weight" in w else _grouped)(w, x, s)


def feed_forward(w: Weights, x: Tensor, s: Settings) -> Tensor:
    return _experts(w, x, s) if "mlp.gate.weight" in w else _gated(w, "mlp", x)


def _product(w: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _gated(w: Weights, prefix: str, x: Tensor) -> Tensor:
    gate, up = (_product(w, f"{prefix}.{name}_proj", x) for name in ("gate", "up"))
    return _product(w, f"{prefix}.down_proj", silu(gate) * up)


def _grouped(w: Weights, x: Tensor, s: Settings) -> Tensor:
    size = s["head_dim"]
    q, k, v = (_product(w, f"self_attn.{n}_proj", x).unflatten(1, (-1, size)) for n in "qkv")
    if "self_attn.q_norm.weight" in w:
        q = normed(q, w["self_attn.q_norm.weight"], s["rms_norm_eps"])
        k = normed(k, w["self_attn.k_norm.weight"], s["rms_norm_eps"])
    q, k = (_rotated(each, s["rope_theta"]) for each in (q, k))
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    mixed = _mixed(q, k, v, size**-0.5, s.get("sliding_window") or len(x))
    return _product(w, "self_attn.o_proj", mixed)


def _latent(w: Weights, x: Tensor, s: Settings) -> Tensor:
    """Section 2.1.1 of DeepSeek-V2, not absorbed; rotating dimensions pair with neighbours."""
    nope, rope, heads = s["qk_nope_head_dim"], s["qk_rope_head_dim"], s["num_attention_heads"]
    down = normed(_product(w, "self_attn.q_a_proj", x), w["self_attn.q_a_layernorm.weight"], 1e-6)
    q = _product(w, "self_attn.q_b_proj", down).unflatten(1, (heads, -1))
    latent, key = _product(w, "self_attn.kv_a_proj_with_mqa", x).split([s["kv_lora_rank"], rope], 1)
    latent = normed(latent, w["self_attn.kv_a_layernorm.weight"], 1e-6)
    both = _product(w, "self_attn.kv_b_proj", latent).unflatten(1, (heads, -1))
    shared = _rotated(_unpaired(key[:, None]), s["rope_theta"]).expand(-1, heads, -1)
    turned = _rotated(_unpaired(q[..., nope:]), s["rope_theta"])
    q = torch.cat([q[..., :nope], turned], -1)
    k = torch.cat([both[..., :nope], shared], -1)
    mixed = _mixed(q, k, both[..., nope:], (nope + rope) ** -0.5, len(x))
    return _product(w, "self_attn.o_proj", mixed)


def _unpaired(x: Tensor) -> Tensor:
    """Neighbours, brought half a head apart."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1)


def _rotated(x: Tensor, theta: float) -> Tensor:
    """x [T, H, D], its rows at positions 0…T−1."""
    half = x.shape[-1] // 2
    frequency = theta ** -(torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(len(x), dtype=x.dtype)[:, None, None] * frequency
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1
    )


def _mixed(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """Causal attention to so many keys, heads side by side: [T, H·Dv]."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    back = torch.arange(len(q))[:, None] - torch.arange(len(q))
    unseen = (back < 0) | (back >= window)
    shares = scores.masked_fill(unseen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, v).flatten(1)


def _experts(w: Weights, x: Tensor, s: Settings) -> Tensor:
    """Section 2.1.2 of DeepSeek-V3, row by row."""
    scores = _product(w, "mlp.gate", x).sigmoid()
    ranks = scores + w["mlp.gate.e_score_correction_bias"]
    rows = []
    for row, score, rank in zip(x, scores, ranks, strict=True):
        worth = rank.view(s["n_group"], -1).topk(2).values.sum(1)
        group = torch.full_like(worth, float("-inf")).scatter(
            0, worth.topk(s["topk_group"]).indices, 0.0
        )
        best = (rank.view(s["n_group"], -1) + group[:, None]).flatten()
        chosen = best.topk(s["num_experts_per_tok"]).indices
        weight = score[chosen] / score[chosen].sum() * s["routed_scaling_factor"]
        out = _gated(w, "mlp.shared_experts", row)
        for expert, share in zip(chosen.tolist(), weight, strict=True):
            out = out + share * _gated(w, f"mlp.experts.{expert}", row)
        rows.append(out)
    return torch.stack(rows)


@dataclass(frozen=True)
class PlainTables:
    """What ids become and where logits come from."""

    embedding: Tensor
    """[V, d]"""
    head: Tensor
    """[any, d]"""

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head.T


@dataclass(frozen=True)
class PlainModule:
    """One module of multi-token prediction: what is around the layer, and the layer."""

    parts: Weights
    layer: Weights
    settings: Settings
    tables: PlainTables
    hidden_first: bool = False
    carry_norm: bool = True

    def run(self, token_ids: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Of the last pair: (what is carried on [d], logits [V])."""
        eps, parts = self.settings["rms_norm_eps"], self.parts
        embedded = normed(self.tables.embedding[list(token_ids)], parts["enorm.weight"], eps)
        before = normed(hidden, parts["hnorm.weight"], eps)
        pair = [before, embedded] if self.hidden_first else [embedded, before]
        u = torch.cat(pair, 1) @ parts["eh_proj.weight"].T
        last = plain_layer(self.layer, u, self.settings)[-1]
        after = normed(last, parts["norm.weight"], eps)
        return after if self.carry_norm else last, self.tables.logits(after)


@dataclass(frozen=True)
class PlainEagle3:
    """An EAGLE-3 head; the first layer is fused, others are where it says so."""

    weights: Weights
    """fc, norm, fc_norm.I, input_norm"""
    layers: Sequence[Weights]
    settings: Settings
    tables: PlainTables
    norm_before_residual: bool = False
    norm_output: bool = False

    def fuse(self, features: Tensor) -> Tensor:
        w, eps = self.weights, self.settings["rms_norm_eps"]
        if "fc_norm.0.weight" in w:
            taps = features.chunk(sum(name.startswith("fc_norm.") for name in w), 1)
            features = torch.cat(
                [normed(tap, w[f"fc_norm.{i}.weight"], eps) for i, tap in enumerate(taps)], 1
            )
        if "input_norm.weight" in w:
            features = normed(features, w["input_norm.weight"], eps)
        return features @ w["fc.weight"].T

    def run(self, token_ids: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """As PlainModule.run."""
        eps, embedded = self.settings["rms_norm_eps"], self.tables.embedding[list(token_ids)]
        x = hidden
        for w in self.layers:
            x = (
                self._fused(w, embedded, x)
                if "hidden_norm.weight" in w
                else plain_layer(w, x, self.settings)
            )
        after = normed(x[-1], self.weights["norm.weight"], eps)
        return after if self.norm_output else x[-1], self.tables.logits(after)

    def _fused(self, w: Weights, embedded: Tensor, hidden: Tensor) -> Tensor:
        eps = self.settings["rms_norm_eps"]
        inner = normed(hidden, w["hidden_norm.weight"], eps)
        a = torch.cat([normed(embedded, w["input_layernorm.weight"], eps), inner], 1)
        o = (inner if self.norm_before_residual else hidden) + attention(w, a, self.settings)
        return o + feed_forward(
            w, normed(o, w["post_attention_layernorm.weight"], eps), self.settings
        )


Run = Callable[[Sequence[int], Tensor], tuple[Tensor, Tensor]]


def drafted_by_one(run: Run, text: Sequence[int], hidden: Tensor, count: int) -> Tensor:
    """[count, V] logits of the drafts behind `text`; hidden [len(text) − 1, d] of the target.

    A head is fed its own drafts and hidden states, all pairs anew each time.
    """
    token_ids, found = list(text[1:]), []
    for _ in range(count):
        carried, logits = run(token_ids, hidden)
        found.append(logits)
        token_ids, hidden = [*token_ids, int(logits.argmax())], torch.cat([hidden, carried[None]])
    return torch.stack(found)


def drafted_by_each(runs: Sequence[Run], text: Sequence[int], hidden: Tensor) -> Tensor:
    """[modules, V]: each module drafts once, over rows that the one before shifted by a place."""
    token_ids, found = list(text[1:]), []
    for run in runs:
        carried, logits = run(token_ids, hidden)
        found.append(logits)
        token_ids = [*token_ids[1:], int(logits.argmax())]
        hidden = torch.cat([hidden[1:], carried[None]])
    return torch.stack(found)
