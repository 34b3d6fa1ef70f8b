"""Multi-token prediction (DeepSeek-V3, 2024, section 2.2): a layer of the target's own kind behind
the target's last, fed the next token's embedding beside the hidden state.

    u = eh_proj(enorm(E[t_{i+1}]) ‖ hnorm(h_i)),   g_i = layer(u),   logits of t_{i+2} = W norm(g_i)

Knows: that recursion, how modules are read. Does not know: how checkpoints name tensors
(mtp_layouts), rounds, seats.

h is the target's hidden state after its final norm, as the engines that serve these checkpoints
feed it. What is carried on, g or norm(g), is the family's habit (MtpLayout.carry_norm); the wrong
one costs most of the acceptance from the second draft on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider_worker.attention.base import AttentionBackend, Rows
from outrider_worker.kv import KvPool
from outrider_worker.linear import Linear
from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.decoder import Decoder, ForwardMaker, Layer
from outrider_worker.model.draft.mtp_layouts import MODULE_PARTS, MtpNames
from outrider_worker.model.draft.tables import (
    VOCABULARY_MAPS,
    Table,
    embedding,
    output_table,
    read_kept_ids,
)
from outrider_worker.model.draft.tensors import DraftTensors, OffsetNorms
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.loader import LoadedModel
from outrider_worker.model.registry import find_architecture
from outrider_worker.model.shapes import Shape
from outrider_worker.model.weights import linear


@dataclass(frozen=True)
class MtpModule:
    """One module (a DraftHead). Its K/V lie in the pool's layer of its number."""

    config: ModelConfig
    embed: Table
    table: Table
    """Hidden states behind `norm` → logits"""
    embedding_norm: RmsNorm
    hidden_norm: RmsNorm
    combine: Linear
    """[b, 2d] → [b, d]"""
    layer: Layer
    norm: RmsNorm
    forward: ForwardMaker
    hidden_first: bool
    carry_norm: bool
    kept_ids: Tensor | None
    boundaries: tuple[int, ...] = ()

    def fuse(self, features: Tensor) -> Tensor:
        """See DraftHead: the target's last hidden states are fed as they are."""
        return features

    @torch.inference_mode()
    def extend(self, token_ids: Tensor, hidden: Tensor, rows: Rows, pool: KvPool) -> Tensor:
        """See DraftHead."""
        pair = [self.embedding_norm(self.embed(token_ids)), self.hidden_norm(hidden)]
        x = self.combine(torch.cat(pair[::-1] if self.hidden_first else pair, dim=-1))
        x = self.layer(x, self.forward(rows, pool))
        return self.norm(x) if self.carry_norm else x

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See DraftHead."""
        return self.table(hidden if self.carry_norm else self.norm(hidden))


def read_modules(
    tensors: DraftTensors, names: MtpNames, target: LoadedModel, backend: AttentionBackend
) -> tuple[MtpModule, ...]:
    """All modules of a checkpoint, the first one first.

    Raises ModelError where tensors are missing, surplus, or not of the target's kind and sizes.
    """
    family = type(target.model)
    if not issubclass(family, Decoder):
        raise ModelError(f"{target.config.architecture} has no layers that a module could be of")
    layout = names.layout
    config = _modules_config(target.config, tensors, len(names.numbers))
    _check(tensors, config)
    kept_ids = _kept_ids(tensors, config.vocab_size)
    weights = OffsetNorms(tensors, layout.norm_offset)
    forward = ForwardMaker(config, backend, tensors.dtype, tensors.device)

    def module(index: int) -> MtpModule:
        prefix, eps = f"modules.{index}", config.rms_eps
        return MtpModule(
            config=config,
            embed=embedding(tensors, f"{prefix}.embed_tokens.weight", target),
            table=output_table(tensors, f"{prefix}.head.weight", target, kept_ids),
            embedding_norm=RmsNorm(weights(f"{prefix}.enorm.weight"), eps),
            hidden_norm=RmsNorm(weights(f"{prefix}.hnorm.weight"), eps),
            combine=linear(weights, f"{prefix}.eh_proj"),
            layer=family.read_layer(config, weights, index),
            norm=RmsNorm(weights(f"{prefix}.norm.weight"), eps),
            forward=forward,
            hidden_first=layout.hidden_first,
            carry_norm=layout.carry_norm,
            kept_ids=kept_ids,
        )

    return tuple(module(index) for index in range(config.layers))


def _check(tensors: DraftTensors, config: ModelConfig) -> None:
    """Raises ModelError for what is missing, surplus or misshapen, and says so where the layers are
    of another kind than the target's: then no single tensor is to blame."""
    expected = _shapes(config, tensors)
    try:
        tensors.check(expected, apart=VOCABULARY_MAPS)
    except ModelError as error:
        stored, wanted = (
            {name for name in names if name.startswith("model.layers.")}
            for names in (tensors.stored, expected)
        )
        if not (stored - wanted and wanted - stored):
            raise
        raise ModelError(
            f"{error}. The modules' layers are not of their target's kind, {config.architecture}"
        ) from error


def _kept_ids(tensors: DraftTensors, vocab: int) -> Tensor | None:
    """The tokens that modules draft, where the checkpoint has a map of them; None for all."""
    if "d2t" not in tensors:
        return None
    return read_kept_ids(tensors, len(tensors("d2t", torch.int64)), vocab)


def _modules_config(target: ModelConfig, tensors: DraftTensors, modules: int) -> ModelConfig:
    """The modules' layers as those of one decoder, which are like the target's last one.

    Whether they have experts is told by the tensors: targets with experts may have dense modules.
    """
    moe = target.moe
    if moe is not None:
        routes = "model.layers.0.mlp.gate.weight" in tensors
        every = replace(moe, first_dense_layers=0, sparse_step=1, dense_layers=frozenset())
        moe = every if routes else None
    return replace(
        target,
        layers=modules,
        sliding_window=target.window(target.layers - 1),
        sliding_layers=None,
        moe=moe,
        mtp_layers=0,
    )


def _shapes(config: ModelConfig, tensors: DraftTensors) -> Mapping[str, Shape]:
    """By our names, all tensors the modules need; tables of their own if they are there."""
    d, vocab = config.hidden_size, config.vocab_size
    drafted = len(tensors("d2t", torch.int64)) if "d2t" in tensors else vocab
    decoder = find_architecture(config.architecture).tensor_shapes(config)
    shapes = {name: shape for name, shape in decoder.items() if name.startswith("model.layers.")}
    for module in range(config.layers):
        for part in MODULE_PARTS:
            shapes[f"modules.{module}.{part}.weight"] = (d, 2 * d) if part == "eh_proj" else (d,)
        for table, rows in (("embed_tokens", vocab), ("head", drafted)):
            if (name := f"modules.{module}.{table}.weight") in tensors:
                shapes[name] = (rows, d)
    return shapes
