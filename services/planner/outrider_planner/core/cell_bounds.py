"""What a cell of draft outcomes may claim: no more than was asked for, nothing that must not rise.

Knows the inequalities of counts by position and bin. Does not know rounds or times.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    MAX_BINS,
    AcceptanceCell,
    DrafterTraits,
    FloatArray,
    Hello,
    IntArray,
    WorkerLimits,
)


def bound_cells(
    cells: tuple[AcceptanceCell, ...],
    hello: Hello,
    most_asked: int,
    rejected: Counter[str],
) -> tuple[tuple[CellKey, Counts], ...]:
    """The cells that are possible, as counts; the others are counted by reason in ``rejected``.

    ``most_asked``: request-rounds of the rounds that ran, for any one drafter.
    """
    traits = {item.name: item for item in hello.drafters}
    asked: Counter[str] = Counter()
    kept = []
    for cell in cells:
        if cell.drafter not in traits:
            rejected["unknown_drafter"] += 1
            continue
        possible = asked[cell.drafter] + cell.asked <= most_asked
        counts = _counts(cell, traits[cell.drafter], hello.limits) if possible else None
        if counts is None:
            rejected["impossible_cell"] += 1
            continue
        asked[cell.drafter] += cell.asked
        kept.append((CellKey(cell.drafter, cell.request_class, cell.context_band), counts))
    return tuple(kept)


def _counts(cell: AcceptanceCell, traits: DrafterTraits, limits: WorkerLimits) -> Counts | None:
    """A cell as counts, or None where it claims the impossible."""
    positions = min(traits.max_draft_tokens, limits.max_draft_tokens)
    columns = (cell.asked_by_position, cell.drafted, cell.verified, cell.accepted)
    longest = max(column.size for column in columns)
    if longest > positions or not _within(cell, columns):
        return None
    by_position = np.zeros((4, positions))
    for row, column in zip(by_position, columns, strict=True):
        row[: column.size] = column
    grid = _grid(cell, by_position[1:], traits.score_bins)
    chains_fall = bool((by_position[:, 1:] <= by_position[:, :-1]).all())
    if grid is None or not (chains_fall and _falls(by_position) and _falls(grid)):
        return None
    return Counts(by_position[0], grid)


def _within(cell: AcceptanceCell, columns: tuple[IntArray, ...]) -> bool:
    """Whether every count is possible by itself; then their sums are exact, or far too large."""
    by_bin = (cell.bin_drafted, cell.bin_verified, cell.bin_accepted)
    return _lies_below(np.concatenate((*columns, *by_bin)), cell.asked + 1)


def _lies_below(values: IntArray, end: int) -> bool:
    return bool(values.min(initial=0) >= 0 and values.max(initial=0) < end)


def _falls(stages: FloatArray) -> bool:
    """Whether asked ≥ drafted ≥ verified ≥ accepted everywhere, along the first axis."""
    return bool((stages[1:] <= stages[:-1]).all())


def _grid(cell: AcceptanceCell, by_position: FloatArray, bins: int) -> FloatArray | None:
    """(3, K, MAX_BINS) from the bin columns; everything in bin 0 for a drafter without scores."""
    columns = (cell.bin_drafted, cell.bin_verified, cell.bin_accepted)
    if any(column.size != cell.bin.size for column in (cell.bin_position, *columns)):
        return None
    shape = (*by_position.shape, MAX_BINS)
    if cell.bin.size == 0:
        grid = np.zeros(shape)
        grid[:, :, 0] = by_position
        return grid
    if not (_lies_below(cell.bin_position, shape[1]) and _lies_below(cell.bin, bins)):
        return None
    place = cell.bin_position * MAX_BINS + cell.bin
    size = shape[1] * MAX_BINS
    places = np.concatenate((place, place + size, place + 2 * size))
    grid = np.bincount(places, np.concatenate(columns), 3 * size).reshape(shape)
    return grid if bool((grid.sum(axis=2) <= by_position).all()) else None
