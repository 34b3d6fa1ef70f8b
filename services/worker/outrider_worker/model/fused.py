"""A plain decoder's layers as one job for the CPU's threads: kernels.stack_job seen from tensors.

Knows: which layers can be run so, how a forward becomes records. Does not know: what the job does.
The layers' own code is the reference, and serves whatever is not plain or not on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_worker.attention.base import AttentionBackend
from outrider_worker.attention.rows_cpu import RowAttention, RowPlan
from outrider_worker.kernels.elementwise import LANES
from outrider_worker.kernels.panel_linear import PanelLinear
from outrider_worker.kernels.stack_job import LAYER, RUN, STACK
from outrider_worker.kernels.team import Team, find_team
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.decoder import Attention, Forward, Layer
from outrider_worker.model.layers import GatedFeedForward
from outrider_worker.model.taps import Taps


class FusedStack:
    """The layers of one model."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer], team: Team) -> None:
        self._config, self._layers, self._team = config, layers, team
        self._records = np.concatenate([_record(layer) for layer in layers])
        self._windows = [config.window(index) for index in range(config.layers)]
        self._ffn = config.ffn_size
        self._row_floats = _scratch_floats(config)

    def run(self, x: Tensor, shared: Forward, taps: Taps) -> Tensor:
        """[R, d] → [R, d]; x is used up. K and V of the rows are written on the way.

        One job for each run of layers that no tap parts: a job knows nothing of taps, and layers
        give the same bits however they are shared out over jobs.
        """
        scratch = [x.new_empty(x.shape[0], width) for width in self._row_floats.values()]
        layers = self._layers_with(shared)
        stack = np.zeros(1, STACK)
        for name, buffer in zip(self._row_floats, scratch, strict=True):
            stack[name] = buffer.data_ptr()
        turns, index = shared.turns, shared.index
        stack["x"] = x.data_ptr()
        stack["cos"], stack["sin"] = turns.cos.data_ptr(), turns.sin.data_ptr()
        stack["page"], stack["offset"] = index.page.data_ptr(), index.offset.data_ptr()
        stack["hidden"], stack["ffn"] = x.shape[1], self._ffn
        taps.take(0, x)
        for first, end in taps.parts():
            part = layers[first:end]
            stack["layers"], stack["layer_count"] = part.ctypes.data, len(part)
            self._team.run(RUN, stack.ctypes.data, torch.get_num_threads())
            taps.take(end, x)
        return x

    def _layers_with(self, shared: Forward) -> NDArray[np.void]:
        """The layers' records with one forward's pool and plans."""
        layers, pool = self._records.copy(), shared.pool
        layers["keys"] = [keys.data_ptr() for keys in pool.keys]
        layers["values"] = [values.data_ptr() for values in pool.values]
        layers["attention"] = [_job_address(shared, window) for window in self._windows]
        return layers


def fused_stack(
    config: ModelConfig, layers: Sequence[Layer], backend: AttentionBackend
) -> FusedStack | None:
    """The layers as one job, None where one of them, or the attention, is of another kind."""
    team = find_team()
    plain = isinstance(backend, RowAttention) and config.head_dim % LANES == 0
    if team is None or not plain or not all(_is_plain(layer) for layer in layers):
        return None
    return FusedStack(config, layers, team)


def _is_plain(layer: Layer) -> bool:
    attention, ffn = layer.attention, layer.ffn
    if not isinstance(attention, Attention) or not isinstance(ffn, GatedFeedForward):
        return False
    products = (attention.qkv, attention.out, ffn.gate_up, ffn.down)
    return all(isinstance(product, PanelLinear) for product in products)


def _record(layer: Layer) -> NDArray[np.void]:
    """[1] LAYER without what belongs to a forward."""
    attention, ffn = layer.attention, layer.ffn
    assert isinstance(attention, Attention)
    assert isinstance(ffn, GatedFeedForward)
    record = np.zeros(1, LAYER)
    products = {
        "qkv": attention.qkv,
        "out": attention.out,
        "gate_up": ffn.gate_up,
        "down": ffn.down,
    }
    for name, product in products.items():
        assert isinstance(product, PanelLinear)
        record[name], record[f"{name}_bias"] = product.addresses
    record["attention_norm"] = layer.attention_norm.weight.data_ptr()
    record["ffn_norm"] = layer.ffn_norm.weight.data_ptr()
    record["eps"] = layer.ffn_norm.eps
    if attention.norm is not None:
        record["qk_norm"], record["qk_eps"] = attention.norm.weight.data_ptr(), attention.norm.eps
    return record


def _scratch_floats(config: ModelConfig) -> dict[str, int]:
    """Floats per row of a STACK's buffers, by name."""
    heads, dim = config.query_heads, config.head_dim
    return {
        "normed": config.hidden_size,
        "heads": (heads + 2 * config.kv_heads) * dim,
        "q": heads * dim,
        "mixed": heads * dim,
        "gate_up": 2 * config.ffn_size,
        "gated": config.ffn_size,
    }


def _job_address(shared: Forward, window: int | None) -> int:
    plan = shared.plans[window]
    assert isinstance(plan, RowPlan)
    return plan.job_address
