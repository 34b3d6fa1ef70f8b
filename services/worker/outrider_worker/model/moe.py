"""Feed-forward layers made of experts.

Knows: router, routed and shared experts as one feed-forward, the names of their weights.
Does not know: how experts are chosen (routing) or computed (experts), the rest of a layer.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from outrider_worker.linear import make_linear
from outrider_worker.model.config import ModelConfig, MoeConfig
from outrider_worker.model.decoder import FeedForward
from outrider_worker.model.experts import (
    ExpertByExpert,
    Experts,
    StackedWeights,
    stacked_experts,
)
from outrider_worker.model.routing import Router
from outrider_worker.model.shapes import Shapes, ffn_shapes, gated_shapes, linear_shapes
from outrider_worker.model.weights import Weights, feed_forward

_BIAS = "e_score_correction_bias"
_GATE_UP = ("gate", "up")


class MixtureOfExperts:
    """The chosen experts' weighted sum (Shazeer et al. 2017), and experts that see every row."""

    def __init__(self, router: Router, experts: Experts, shared: FeedForward | None) -> None:
        self._router = router
        self._experts = experts
        self._shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        """See FeedForward."""
        routed = self._experts(x, self._router(x))
        return routed if self._shared is None else routed.add_(self._shared(x))

    @classmethod
    def read(cls, config: ModelConfig, moe: MoeConfig, weights: Weights, prefix: str) -> Self:
        """The one called `prefix` in a checkpoint; what routes is read in float32."""
        gate = weights(f"{prefix}.gate.weight", torch.float32)
        bias = weights(f"{prefix}.gate.{_BIAS}", torch.float32) if moe.bias_corrected else None
        shared = f"{prefix}.shared_experts"
        return cls(
            Router(moe, make_linear(gate), bias),
            _read_experts(moe, weights, f"{prefix}.experts", gate.device),
            feed_forward(weights, shared, config.mlp_bias) if moe.shared_experts else None,
        )


def make_feed_forward(config: ModelConfig, weights: Weights, layer: int) -> FeedForward:
    """Experts where `layer` routes, else the ordinary feed-forward."""
    prefix = f"model.layers.{layer}.mlp"
    if config.moe is not None and config.moe.routes(layer):
        return MixtureOfExperts.read(config, config.moe, weights, prefix)
    return feed_forward(weights, prefix, config.mlp_bias)


def _read_experts(moe: MoeConfig, weights: Weights, prefix: str, device: torch.device) -> Experts:
    """Expert by expert: beside the finished layer, memory holds one expert at most."""
    names = [f"{prefix}.{expert}" for expert in range(moe.experts)]
    if device.type == "cpu":
        return ExpertByExpert([feed_forward(weights, name) for name in names])
    gate_up = _stacked(weights, [f"{name}.{part}_proj" for name in names for part in _GATE_UP])
    down = _stacked(weights, [f"{name}.down_proj" for name in names])
    return stacked_experts(StackedWeights(gate_up.unflatten(0, (-1, 2)).flatten(1, 2), down))


def _stacked(weights: Weights, names: list[str]) -> Tensor:
    """[names, …], read one at a time."""
    first = weights(f"{names[0]}.weight")
    out = first.new_empty(len(names), *first.shape)
    out[0] = first
    for index, name in enumerate(names[1:], start=1):
        out[index] = weights(f"{name}.weight")
    return out


def feed_forward_shapes(config: ModelConfig, layer: int) -> Shapes:
    """The tensors of the feed-forward of a layer."""
    moe, size = config.moe, config.hidden_size
    if moe is None or not moe.routes(layer):
        yield from ffn_shapes(config, layer)
        return
    prefix = f"model.layers.{layer}.mlp"
    yield from linear_shapes(f"{prefix}.gate", moe.experts, size)
    if moe.bias_corrected:
        yield f"{prefix}.gate.{_BIAS}", (moe.experts,)
    for expert in range(moe.experts):
        yield from gated_shapes(f"{prefix}.experts.{expert}", size, moe.expert_ffn_size)
    if moe.shared_experts:
        inner = moe.expert_ffn_size * moe.shared_experts
        yield from gated_shapes(f"{prefix}.shared_experts", size, inner, config.mlp_bias)
