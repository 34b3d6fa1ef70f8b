"""Cost tables for simulated workers: by roofline, measured on a CPU, or from a file.

Knows how a table is laid out in a file and how a worker would have measured a roofline. Does not
know what a round really costs in a simulated world (machine.py), which may differ from its table.

A file is JSON: {"name", "row_buckets", "pads_rows", "host_us", "host_us_per_request",
"target": [{"context_tokens", "rows", "median_us"}], "feed": […],
"draft": [{"context_tokens", "requests", "draft_tokens", "median_us"}]}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from outrider_planner.core.types import (
    CostCurve,
    CostTable,
    DraftCostGrid,
    DrafterCosts,
    FloatArray,
    IntArray,
)
from outrider_planner.sim.rooflines import DRAFT_STEPS, H200, TARGETS

DRAFTER = "eagle"
CPU = "cpu_135m"
_CONTEXTS_TOKENS = (256, 2048)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_DRAFT_TOKENS = 16
_MOST_ROWS = 3328


class CostFileError(ValueError):
    """A cost file that cannot be used; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class MachineTable:
    """What a worker measured, and the host time that no overlap hides (c of planner.md)."""

    name: str
    table: CostTable
    row_buckets: tuple[int, ...]
    pads_rows: bool
    host_us: float
    host_us_per_request: float

    @property
    def most_rows(self) -> int:
        """The largest forward that was measured."""
        return self.row_buckets[-1]


def names() -> tuple[str, ...]:
    """Tables that need no file."""
    return (*TARGETS, CPU)


@cache
def named(name: str) -> MachineTable:
    """A built-in table, or the one in the file of that name.

    ``h200_14b+60ms`` is the built-in table with that much more fixed time in every pass.

    Raises:
        CostFileError: neither is there, or the file is no cost table.
    """
    base, _, more_ms = name.partition("+")
    if base in TARGETS and (not more_ms or more_ms.removesuffix("ms").isdecimal()):
        return _roofline(base, float(more_ms.removesuffix("ms") or 0) * 1e-3)
    if name == CPU:
        text = resources.files("outrider_planner.sim").joinpath("data", f"{CPU}.json").read_text()
        return from_json(json.loads(text))
    try:
        return from_json(json.loads(Path(name).read_text()))
    except (OSError, json.JSONDecodeError) as error:
        raise CostFileError(f"no cost table {name!r}: built in are {', '.join(names())}") from error


def from_json(data: Any) -> MachineTable:
    """A table from a parsed file.

    Raises:
        CostFileError: a field is missing or has the wrong form.
    """
    try:
        target = tuple(_curve(item) for item in data["target"])
        feed = tuple(_curve(item) for item in data.get("feed", ()))
        draft = tuple(
            DraftCostGrid(
                int(item["context_tokens"]),
                *(tuple(map(int, item[key])) for key in ("requests", "draft_tokens", "median_us")),
            )
            for item in data["draft"]
        )
        return MachineTable(
            name=str(data["name"]),
            table=CostTable(target, (DrafterCosts(DRAFTER, feed, draft),)),
            row_buckets=tuple(map(int, data["row_buckets"])),
            pads_rows=bool(data["pads_rows"]),
            host_us=float(data["host_us"]),
            host_us_per_request=float(data["host_us_per_request"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CostFileError(f"malformed cost table: {error!r}") from error


def graph_ladder(most_rows: int) -> tuple[int, ...]:
    """Captured sizes: 1, 2, 4, by 8 to 256, by 16 to 512, by 64 above."""
    steps = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(576, most_rows + 1, 64)]
    return tuple(step for step in steps if step <= most_rows)


def _roofline(name: str, more_s: float) -> MachineTable:
    target, step = TARGETS[name], DRAFT_STEPS[name]
    target = replace(target, fixed_s=target.fixed_s + more_s)
    buckets = graph_ladder(_MOST_ROWS)

    def drafting(n: IntArray, d: IntArray, context: float) -> FloatArray:
        seconds: FloatArray = d * step.seconds(H200, n, context)
        return seconds

    table = CostTable(
        _curves(lambda rows, context: target.seconds(H200, rows, context), buckets),
        (
            DrafterCosts(
                DRAFTER,
                _curves(lambda rows, context: step.seconds(H200, rows, context), buckets),
                tuple(_grid(drafting, context) for context in _CONTEXTS_TOKENS),
            ),
        ),
    )
    return MachineTable(name, table, buckets, True, host_us=400.0, host_us_per_request=3.0)


def _curves(
    seconds: Callable[[IntArray, float], FloatArray], rows: Sequence[int]
) -> tuple[CostCurve, ...]:
    at = np.array(rows)
    return tuple(
        CostCurve(context, tuple(rows), _micros(seconds(at, context)))
        for context in _CONTEXTS_TOKENS
    )


def _grid(
    seconds: Callable[[IntArray, IntArray, float], FloatArray], context: int
) -> DraftCostGrid:
    lengths = np.arange(1, _MOST_DRAFT_TOKENS + 1)
    n, d = np.repeat(_REQUESTS, lengths.size), np.tile(lengths, len(_REQUESTS))
    micros = _micros(seconds(n, d, context))
    return DraftCostGrid(context, tuple(n.tolist()), tuple(d.tolist()), micros)


def _curve(item: Any) -> CostCurve:
    return CostCurve(
        int(item["context_tokens"]),
        tuple(map(int, item["rows"])),
        tuple(map(int, item["median_us"])),
    )


def _micros(seconds: FloatArray) -> tuple[int, ...]:
    return tuple(np.maximum(np.round(seconds * 1e6), 1).astype(int).tolist())
