"""Which experts a row goes to, and with what weights.

Knows: scoring, groups of experts, the correction bias. Does not know: what experts compute.

In float32 whatever the model's dtype, as a rounding error can change a choice. Only operations
whose bits do not depend on the number of rows are used: see layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.linear import Linear
from outrider_worker.model.config import MoeConfig

_TINY = 1e-20
"""Keeps the division that normalises weights finite."""


@dataclass(frozen=True)
class Routing:
    """The choice of R rows, k experts each."""

    experts: Tensor
    """[R, k] int64, ascending in every row"""
    weights: Tensor
    """[R, k] float32"""


class Router:
    """The best k experts of every row.

    Qwen3-MoE takes the best of all. DeepSeek-V2 (2024, section 2.2.2) first keeps the groups with
    the best expert, DeepSeek-V3 (2024, section 2.1.2) those with the best two, and adds a bias to
    the scores that experts are chosen by, though not to those they are weighed by.
    """

    def __init__(self, config: MoeConfig, product: Linear, bias: Tensor | None = None) -> None:
        """product: [R, d] → [R, experts]; bias: [experts]; both float32."""
        self._config = config
        self._product = product
        self._bias = bias
        self._score: Callable[[Tensor], Tensor] = (
            sigmoid if config.scoring == "sigmoid" else _softmax
        )

    def __call__(self, x: Tensor) -> Routing:
        """x: [R, d]"""
        scores = self._score(self._product(x.float()))
        ranks = scores if self._bias is None else scores + self._bias
        if self._config.groups_kept < self._config.groups:
            ranks = self._within_best_groups(ranks)
        best = ranks.topk(self._config.experts_per_token, sorted=False).indices
        experts = best.sort(-1).values
        return Routing(experts, self._weigh(scores.gather(1, experts)))

    def _within_best_groups(self, ranks: Tensor) -> Tensor:
        """−inf for the experts of all groups but the best."""
        by_group = ranks.view(ranks.shape[0], self._config.groups, -1)
        counted = 2 if self._config.grouping == "noaux_tc" else 1
        worth = _added_in_order(by_group.topk(counted).values)
        kept = worth.topk(self._config.groups_kept, sorted=False).indices
        dropped = torch.ones_like(worth, dtype=torch.bool).scatter_(1, kept, False)
        return by_group.masked_fill(dropped.unsqueeze(-1), float("-inf")).view_as(ranks)

    def _weigh(self, scores: Tensor) -> Tensor:
        if self._config.normalise:
            scores = scores / (_added_in_order(scores) + _TINY).unsqueeze(-1)
        return scores * self._config.scale


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(−x)), of the same bits wherever an element lies: see layers.silu."""
    return x.neg().exp_().add_(1.0).reciprocal_()


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _added_in_order(values: Tensor) -> Tensor:
    """[…, k] → […]"""
    total, *others = values.unbind(-1)
    for value in others:
        total = total + value
    return total
