"""EAGLE-3 (Li et al. 2025, section 3.1): a head fed with several of the target's hidden states.

    f_i = fc(F_i) for what the target has run over, else the head's own g_i
    a = input_layernorm(E[t_{i+1}]) ‖ hidden_norm(f_i)
    o = f_i + attention(a),   g_i = o + mlp(post_attention_layernorm(o)),   more layers on g_i
    logits of t_{i+2} = lm_head(norm(g_i)), over a part of the target's vocabulary

Knows: that recursion with the variants that files ask for, how a head is read.
Does not know: how settings are spelt (eagle3_config), rounds, seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider_worker.attention.base import AttentionBackend, Rows
from outrider_worker.kv import KvPool
from outrider_worker.linear import Linear
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.decoder import Decoder, Forward, ForwardMaker, Layer
from outrider_worker.model.draft.eagle3_config import Eagle3Config
from outrider_worker.model.draft.tables import (
    VOCABULARY_MAPS,
    Table,
    embedding,
    output_table,
    read_kept_ids,
)
from outrider_worker.model.draft.tensors import DraftTensors
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.loader import LoadedModel
from outrider_worker.model.shapes import Shape, tensor_shapes
from outrider_worker.model.weights import linear


@dataclass(frozen=True)
class FusedLayer:
    """A layer whose attention sees the embedding beside the hidden state."""

    plain: Layer
    """Its `attention_norm` is the embedding's; its attention takes [b, 2d]."""
    hidden_norm: RmsNorm
    norm_before_residual: bool

    def __call__(self, embedded: Tensor, hidden: Tensor, shared: Forward) -> Tensor:
        """[b, d], [b, d] → [b, d]"""
        normed = self.hidden_norm(hidden)
        both = torch.cat([self.plain.attention_norm(embedded), normed], dim=-1)
        x = self.plain.attention(both, shared)
        x += normed if self.norm_before_residual else hidden
        x += self.plain.ffn(self.plain.ffn_norm(x))
        return x


@dataclass(frozen=True)
class TapFusion:
    """Several hidden states of the target become one."""

    tap_norms: Sequence[RmsNorm]
    """One for each tap; empty: none."""
    norm: RmsNorm | None
    """Of all taps side by side."""
    fc: Linear

    def __call__(self, features: Tensor) -> Tensor:
        """[b, m·D] → [b, d]"""
        if self.tap_norms:
            taps = features.chunk(len(self.tap_norms), dim=-1)
            normed = [norm(tap) for norm, tap in zip(self.tap_norms, taps, strict=True)]
            features = torch.cat(normed, dim=-1)
        return self.fc(self.norm(features) if self.norm else features)


@dataclass(frozen=True)
class Eagle3Head:
    """A DraftHead."""

    config: ModelConfig
    boundaries: tuple[int, ...]
    fusion: TapFusion
    embed: Table
    table: Table
    """Hidden states behind `norm` → logits"""
    layers: Sequence[FusedLayer | Layer]
    norm: RmsNorm
    forward: ForwardMaker
    carry_norm: bool
    kept_ids: Tensor | None

    @torch.inference_mode()
    def fuse(self, features: Tensor) -> Tensor:
        """See DraftHead."""
        return self.fusion(features)

    @torch.inference_mode()
    def extend(self, token_ids: Tensor, hidden: Tensor, rows: Rows, pool: KvPool) -> Tensor:
        """See DraftHead."""
        shared, embedded = self.forward(rows, pool), self.embed(token_ids)
        for layer in self.layers:
            if isinstance(layer, FusedLayer):
                hidden = layer(embedded, hidden, shared)
            else:
                hidden = layer(hidden, shared)
        return self.norm(hidden) if self.carry_norm else hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See DraftHead."""
        return self.table(hidden if self.carry_norm else self.norm(hidden))


def own_eagle3_name(stored: str) -> str:
    """A tensor's name here: `model.layers.I.…` for layers, without "model." for all else."""
    name = stored.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
    return f"model.{name}" if name.startswith("layers.") else name


def stored_eagle3_name(ours: str, stored: Iterable[str]) -> str:
    """How a tensor that is not there would be called beside those that are."""
    found = tuple(stored)
    prefix = "model." if any(name.startswith("model.") for name in found) else ""
    name = ours.removeprefix("model.")
    if any("midlayer." in each for each in found):
        name = name.replace("layers.0.", "midlayer.", 1)
    return prefix + name


def read_eagle3(
    tensors: DraftTensors, config: Eagle3Config, target: LoadedModel, backend: AttentionBackend
) -> Eagle3Head:
    """The head of a checkpoint. Raises ModelError where tensors and settings do not fit."""
    layers, eps = config.layers, config.layers.rms_eps
    tensors.check(_shapes(tensors, config, target), apart=VOCABULARY_MAPS)
    reduced, vocab = config.draft_vocab_size, target.config.vocab_size
    one_vocabulary = reduced == layers.vocab_size and "d2t" not in tensors
    kept_ids = None if one_vocabulary else read_kept_ids(tensors, reduced, vocab)
    # Positions beyond the head's own context are fed, but never drafted from.
    reach = max(layers.max_positions, target.config.max_positions)
    turned = replace(layers, max_positions=reach)
    return Eagle3Head(
        config=layers,
        boundaries=config.boundaries,
        fusion=_read_fusion(tensors, config),
        embed=embedding(tensors, "embed_tokens.weight", target),
        table=output_table(tensors, "lm_head.weight", target, kept_ids),
        layers=[_read_layer(tensors, config, index) for index in range(layers.layers)],
        norm=RmsNorm(tensors("norm.weight"), eps),
        forward=ForwardMaker(turned, backend, tensors.dtype, tensors.device),
        carry_norm=config.norm_output,
        kept_ids=kept_ids,
    )


def _read_fusion(tensors: DraftTensors, config: Eagle3Config) -> TapFusion:
    eps = config.layers.rms_eps
    taps = range(len(config.boundaries) if config.fc_norm else 0)
    return TapFusion(
        tap_norms=[RmsNorm(tensors(f"fc_norm.{tap}.weight"), eps) for tap in taps],
        norm=RmsNorm(tensors("input_norm.weight"), eps) if config.norm_before_fc else None,
        fc=linear(tensors, "fc"),
    )


def _read_layer(tensors: DraftTensors, config: Eagle3Config, index: int) -> FusedLayer | Layer:
    layer = Decoder.read_layer(config.layers, tensors, index)
    name = _hidden_norm(index)
    if name not in tensors:
        return layer
    norm = RmsNorm(tensors(name), config.layers.rms_eps)
    return FusedLayer(layer, norm, config.norm_before_residual)


def _shapes(
    tensors: DraftTensors, config: Eagle3Config, target: LoadedModel
) -> Mapping[str, Shape]:
    """By our names, all weights that the head needs."""
    layers, d, vocab = config.layers, config.layers.hidden_size, config.draft_vocab_size
    size, taps = target.config.hidden_size, len(config.boundaries)
    shapes = dict(tensor_shapes(replace(layers, tie_embeddings=True)))
    shapes = {name: shape for name, shape in shapes.items() if name.startswith("model.layers.")}
    for index in range(layers.layers):
        if index == 0 or _hidden_norm(index) in tensors:
            shapes[_hidden_norm(index)] = (d,)
            for product in "qkv":
                name = f"model.layers.{index}.self_attn.{product}_proj.weight"
                shapes[name] = (shapes[name][0], 2 * d)
    shapes |= {"fc.weight": (d, taps * size), "norm.weight": (d,)}
    if config.fc_norm:
        shapes |= {f"fc_norm.{tap}.weight": (size,) for tap in range(taps)}
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (taps * size,)
    if "embed_tokens.weight" in tensors or d != size:
        shapes["embed_tokens.weight"] = (layers.vocab_size, d)
    if "lm_head.weight" in tensors or "d2t" in tensors or d != size:
        shapes["lm_head.weight"] = (vocab, d)
    return shapes


def _hidden_norm(index: int) -> str:
    return f"model.layers.{index}.hidden_norm.weight"
