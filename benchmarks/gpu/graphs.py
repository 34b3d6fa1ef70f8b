"""Graphs against eager launches: the same bits in every bucket, and how much faster.

The whole model over rounds of four rows per text (fewer where the bucket is smaller), at one
context length. A graph may replay after another in any order, so every bucket is compared twice,
with all others replayed in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.scene import Scene
from outrider_worker.attention.base import Rows
from outrider_worker.graphs import CapturedForwards
from outrider_worker.model.base import CausalLM

_ROWS_EACH = 4


def check(
    machine: Machine, model: CausalLM, buckets: Sequence[int], context_tokens: int
) -> dict[str, Any]:
    """Entries by bucket, and what could not be captured."""
    seats = max(buckets) // _ROWS_EACH
    scene = Scene.random(model, machine.device, machine.dtype, seats, context_tokens)
    graphs = CapturedForwards(model, scene.pool, scene.state.page_table, buckets, machine.capture())
    bench = _Bench(machine, scene, graphs)
    first = [bench.entry(bucket) for bucket in buckets]
    again = [bench.equal(bench.rows(bucket)) for bucket in reversed(buckets)]
    refusals = {str(bucket): reason for bucket, reason in graphs.refusals.items()}
    ok = all(again) and all(entry["equal_bits"] for entry in first) and not refusals
    return {
        "ok": ok and not graphs.fallbacks,
        "context_tokens": context_tokens,
        "buckets": first,
        "refusals": refusals,
        "fallbacks": {str(bucket): count for bucket, count in graphs.fallbacks.items()},
    }


class _Bench:
    """One scene, run both ways."""

    def __init__(self, machine: Machine, scene: Scene, graphs: CapturedForwards) -> None:
        self._machine = machine
        self._scene = scene
        self._graphs = graphs
        self._runs = 2 if machine.dry else 10

    def rows(self, bucket: int) -> Rows:
        """The last rows of as many texts as the bucket holds; one row less, to see padding."""
        each = min(_ROWS_EACH, bucket)
        seats = bucket // each
        first = self._scene.state.known[:seats] - each
        counts = torch.full_like(first, each)
        counts[0] = max(1, each - 1)
        return self._scene.rows(first, counts, max(1, bucket - 1)).rows

    def entry(self, bucket: int) -> dict[str, Any]:
        rows = self.rows(bucket)
        equal = self.equal(rows)
        eager_ms = self._machine.milliseconds(lambda: self._eager(rows), self._runs)
        graph_ms = self._machine.milliseconds(lambda: self._graph(rows), self._runs)
        ratio = eager_ms.median / graph_ms.median
        print(f"  {bucket} rows: eager {eager_ms} ms, graph {graph_ms} ms, {ratio:.2f}x")
        return {
            "bucket": bucket,
            "equal_bits": equal,
            "eager_ms": eager_ms.summary(),
            "graph_ms": graph_ms.summary(),
        }

    def equal(self, rows: Rows) -> bool:
        """Bit for bit, the eager launch over as many rows as the graph has."""
        bucket = self._graphs.bucket(rows.count)
        expected = self._eager(rows.padded_to(bucket))[: rows.count]
        return torch.equal(self._graph(rows), expected)

    @torch.inference_mode()
    def _eager(self, rows: Rows) -> Tensor:
        return self._scene.model.forward(rows, self._scene.pool)

    def _graph(self, rows: Rows) -> Tensor:
        hidden, _ = self._graphs(rows, self._scene.pool)
        return hidden
