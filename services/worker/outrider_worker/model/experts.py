"""The experts of one layer: three ways to compute one thing.

Knows: gated feed-forwards, how the rows of a routing are brought to them and back.
Does not know: how experts are chosen, checkpoints.

On CPUs, expert by expert (ExpertByExpert): only rows that chose an expert are fed to it, and a
row's contributions are added in ascending order of experts, so that its bits do not depend on the
other rows. This reads the choice on the host. An accelerator must not wait for the host: there the
rows are sorted by expert and multiplied in groups (GroupedExperts) where torch has a kernel for
that, else every row is fed to every expert and weighed with zero where it did not choose it
(MaskedExperts).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.model.layers import GatedFeedForward, silu
from outrider_worker.model.routing import Routing

Experts = Callable[[Tensor, Routing], Tensor]
"""x [R, d], the choice of its rows → [R, d], the weighted sum of what the chosen experts give."""


class ExpertByExpert:
    """For CPUs: see the module's docstring."""

    def __init__(self, experts: Sequence[GatedFeedForward]) -> None:
        self._experts = tuple(experts)

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        """See Experts."""
        chosen = routing.experts.flatten()
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=len(self._experts)).tolist()
        rows = (order // routing.experts.shape[1]).split(counts)
        weights = routing.weights.view(-1, 1).index_select(0, order).split(counts)
        out = torch.zeros_like(x)
        for expert, own, weight in zip(self._experts, rows, weights, strict=True):
            if len(own):
                out.index_add_(0, own, expert(x.index_select(0, own)).mul_(weight))
        return out


@dataclass(frozen=True)
class StackedWeights:
    """The weights of all experts of a layer, d the size of a row and F that of an expert."""

    gate_up: Tensor
    """[experts, 2F, d]"""
    down: Tensor
    """[experts, d, F]"""


class GroupedExperts:
    """Rows sorted by expert, one grouped product for all. Does not wait for the device."""

    def __init__(self, weights: StackedWeights) -> None:
        self._gate_up = weights.gate_up.transpose(1, 2)
        self._down = weights.down.transpose(1, 2)
        self._index = torch.arange(len(weights.down), device=weights.down.device)

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        """See Experts."""
        chosen, order = routing.experts.flatten().sort(stable=True)
        ends = torch.searchsorted(chosen, self._index, right=True, out_int32=True)
        rows = x.index_select(0, order // routing.experts.shape[1])
        gate, up = torch._grouped_mm(rows, self._gate_up, offs=ends).chunk(2, dim=-1)
        sorted_out = torch._grouped_mm(silu(gate) * up, self._down, offs=ends)
        out = torch.empty_like(sorted_out).index_copy_(0, order, sorted_out)
        weighted = out.view(*routing.experts.shape, -1) * routing.weights.unsqueeze(-1)
        return weighted.sum(1).to(x.dtype)


class MaskedExperts:
    """Every row through every expert. Does not wait for the device."""

    def __init__(self, weights: StackedWeights) -> None:
        self._weights = weights

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        """See Experts."""
        count = len(self._weights.down)
        spread = routing.weights.new_zeros(len(x), count)
        spread.scatter_(1, routing.experts, routing.weights)
        out = torch.zeros_like(x, dtype=torch.float32)
        for expert in range(count):
            gate, up = (x @ self._weights.gate_up[expert].T).chunk(2, dim=-1)
            out += (silu(gate) * up) @ self._weights.down[expert].T * spread[:, expert, None]
        return out.to(x.dtype)


def stacked_experts(weights: StackedWeights) -> Experts:
    """Grouped where that takes no detour over the host, else masked."""
    groups = _has_grouped_kernel(weights.down)
    return GroupedExperts(weights) if groups else MaskedExperts(weights)


def _has_grouped_kernel(weight: Tensor) -> bool:
    """torch's grouped product has a kernel for bfloat16 on CUDA from compute capability 9 on.

    Elsewhere it copies the group sizes to the host. A kernel wants rows of whole 16 bytes.
    """
    return (
        hasattr(torch, "_grouped_mm")
        and weight.device.type == "cuda"
        and weight.dtype is torch.bfloat16
        and torch.cuda.get_device_capability(weight.device) >= (9, 0)
        and all(size % 8 == 0 for size in weight.shape[1:])
    )
