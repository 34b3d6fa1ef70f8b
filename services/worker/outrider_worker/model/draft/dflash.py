"""DFlash's network: a block of rows attends to keys and values made of the target's own features.

Knows: the layers, how features become context, how rows of a block see one another.
Does not know: tokens, vocabularies, files, who drafts.

Source: DFlash (arXiv 2602.06036), section 3; its published code for sliding layers.

Letters: b rows, d the drafter's hidden size, F the width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from outrider_worker.attention.base import AttentionBackend, AttentionPlan, Rows
from outrider_worker.kernels import have_kernels
from outrider_worker.kv import KvPool, SlotIndex
from outrider_worker.linear import make_linear
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.decoder import Decoder, Forward
from outrider_worker.model.draft.block_config import BlockConfig
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.rotary import Rotary, Turns
from outrider_worker.model.shapes import Shape, Shapes, attention_shapes, ffn_shapes
from outrider_worker.model.taps import Taps
from outrider_worker.model.weights import Weights, linear


class ContextKeys:
    """Keys and values of committed positions, of all layers by one product.

    A position's context vector is the same for every layer and meets no query and no
    feed-forward: all that a layer makes of it is one key and one value.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self._layers, self._heads, self._dim = config.layers, config.kv_heads, config.head_dim
        self._products = make_linear(self._joined(weights, "weight"), self._bias(config, weights))
        norms = [weights(f"model.layers.{i}.self_attn.k_norm.weight") for i in self._indices()]
        by_head = torch.stack(norms).repeat_interleave(self._heads, dim=0)
        self._norm = RmsNorm(by_head, config.rms_eps)

    def __call__(self, context: Tensor, turns: Turns, index: SlotIndex, pool: KvPool) -> None:
        """context [b, d]: written to the slots of `index`, in every layer."""
        rows, middle = context.shape[0], self._layers * self._heads
        found = self._products(context).view(rows, 2 * middle, self._dim)
        keys = Rotary.rotate(self._norm(found[:, :middle]), turns)
        by_layer = (keys.chunk(self._layers, 1), found[:, middle:].chunk(self._layers, 1))
        for layer, (k, v) in enumerate(zip(*by_layer, strict=True)):
            pool.write(layer, k, v, index)

    def _bias(self, config: ModelConfig, weights: Weights) -> Tensor | None:
        return self._joined(weights, "bias") if config.attention_bias else None

    def _joined(self, weights: Weights, kind: str) -> Tensor:
        """The keys of all layers, then the values of all."""
        names = [f"model.layers.{i}.self_attn.{x}_proj" for x in "kv" for i in self._indices()]
        return torch.cat([weights(f"{name}.{kind}") for name in names])

    def _indices(self) -> range:
        return range(self._layers)


class BlockNetwork:
    """The layers of a DFlash or DSpark drafter and their context."""

    def __init__(self, config: BlockConfig, weights: Weights, backend: AttentionBackend) -> None:
        layers = config.layers
        self._config, self._backend = layers, backend
        self._causal_windows = config.causal_windows
        self._fuse = linear(weights, "fc")
        self._context_norm = RmsNorm(weights("hidden_norm.weight"), layers.rms_eps)
        self._context = ContextKeys(layers, weights)
        self._layers = tuple(
            Decoder.read_layer(layers, weights, index) for index in range(layers.layers)
        )
        norm = weights("norm.weight")
        self._norm = RmsNorm(norm, layers.rms_eps)
        self._rotary = Rotary(layers, norm.dtype, norm.device)
        self._windows = {layers.window(layer) for layer in range(layers.layers)}
        self._stack = None
        if have_kernels():
            from outrider_worker.model.fused import fused_stack  # compiles kernels where it must

            self._stack = fused_stack(layers, self._layers, backend)

    @torch.inference_mode()
    def add_context(self, features: Tensor, rows: Rows, pool: KvPool) -> None:
        """features [b, F] of the positions of `rows` [b] become context in their slots."""
        context = self._context_norm(self._fuse(features))
        self._context(context, self._rotary.turns(rows.positions), SlotIndex.of(rows.slots), pool)

    @torch.inference_mode()
    def run(self, x: Tensor, rows: Rows, block: int, pool: KvPool) -> Tensor:
        """Run blocks of `block` rows each over the context before them.

        Args:
            x: [b, d] embeddings; used up.
            rows: [b]; every row of a block has the whole block in its `lengths`, which is what
                makes attention inside it bidirectional. Its keys and values go to their slots.

        Returns the hidden states after the final norm, [b, d].
        """
        shared = Forward(
            pool=pool,
            plans={window: self._plan(rows, block, pool, window) for window in self._windows},
            index=SlotIndex.of(rows.slots),
            turns=self._rotary.turns(rows.positions),
        )
        if self._stack is not None:
            return self._norm(self._stack.run(x, shared, Taps((), len(self._layers), x)))
        for layer in self._layers:
            x = layer(x, shared)
        return self._norm(x)

    def _plan(self, rows: Rows, block: int, pool: KvPool, window: int | None) -> AttentionPlan:
        """Sliding layers, where causal: the usual window, as in z-lab's code. Where not: a window
        on the context, so many keys before the anchor for all rows alike, as speculators trains.
        """
        if window is not None and self._causal_windows:
            rows = replace(rows, lengths=torch.where(rows.lengths > 0, rows.positions + 1, 0))
        elif window is not None:
            window += block
        return self._backend.plan(
            rows, pool, self._config.query_heads, scale=self._config.softmax_scale, window=window
        )


def block_shapes(config: ModelConfig, feature_size: int) -> Mapping[str, Shape]:
    """Name and shape of every tensor of a BlockNetwork; feature_size: F."""
    return dict(_block_shapes(config, feature_size))


def _block_shapes(config: ModelConfig, feature_size: int) -> Shapes:
    d = config.hidden_size
    yield "fc.weight", (d, feature_size)
    yield "hidden_norm.weight", (d,)
    yield "norm.weight", (d,)
    for layer in range(config.layers):
        yield from _layer_shapes(config, layer)


def _layer_shapes(config: ModelConfig, layer: int) -> Shapes:
    yield f"model.layers.{layer}.input_layernorm.weight", (config.hidden_size,)
    yield f"model.layers.{layer}.post_attention_layernorm.weight", (config.hidden_size,)
    yield from attention_shapes(config, layer)
    yield from ffn_shapes(config, layer)
