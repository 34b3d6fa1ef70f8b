"""Decayed sums: how counts of drafts age, and how they are named in the store.

Knows the two time scales: *fast* sums fade by drafting rounds, *slow* ones by buckets of
activity. Does not know what is estimated from them, nor how a store keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from outrider_planner.core.types import MAX_BINS, MAX_DRAFT_TOKENS, FloatArray

FAST_HALF_LIFE_ROUNDS = 64.0
SLOW_HALF_LIFE_S = 6 * 3600.0
BUCKET_S = 15 * 60.0
FLEET_CLASS = "*"

# Buckets older than this weight, some forty hours of activity, no longer matter.
_LEAST_WEIGHT = 0.01
_BUCKET_FADE = 2.0 ** (-BUCKET_S / SLOW_HALF_LIFE_S)
# So many non-empty buckets have a weight, newest first; a reader needs no others.
MOST_BUCKETS = math.floor(math.log(_LEAST_WEIGHT, _BUCKET_FADE)) + 1
# The largest amount a store must take: every language it may be written in holds it exactly.
MOST_AMOUNT = 2**53 - 1
_FAST_FADE = 2.0 ** (-1.0 / FAST_HALF_LIFE_ROUNDS)
_KINDS = ("drafted", "verified", "accepted")
_ASKED = "asked"
_SEPARATOR = "|"


@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """One (drafter, class, context band)."""

    drafter: str
    request_class: str
    context_band: int = 0


@dataclass(slots=True, eq=False)
class Counts:
    """Outcomes by position and bin. ``asked``: (K,). ``grid``: (3, K, bins).

    The first axis of ``grid`` is drafted, verified, accepted-through. ``asked`` at a position
    counts the request-rounds that were asked for a draft at least that long.
    """

    asked: FloatArray
    grid: FloatArray

    @classmethod
    def zeros(cls, positions: int, bins: int = MAX_BINS) -> Counts:
        """Nothing seen."""
        return cls(np.zeros(positions), np.zeros((3, positions, bins)))

    @property
    def drafted(self) -> FloatArray:
        """(K, bins)."""
        plane: FloatArray = self.grid[0]
        return plane

    @property
    def verified(self) -> FloatArray:
        """(K, bins)."""
        plane: FloatArray = self.grid[1]
        return plane

    @property
    def accepted(self) -> FloatArray:
        """(K, bins)."""
        plane: FloatArray = self.grid[2]
        return plane

    def add(self, other: Counts, weight: float = 1.0) -> None:
        """Adds in place; the other may hold fewer positions."""
        positions = other.asked.size
        asked, grid = other.asked, other.grid
        if weight != 1.0:
            asked, grid = weight * asked, weight * grid
        self.asked[:positions] += asked
        self.grid[:, :positions] += grid

    def fade(self, rounds: int) -> None:
        """Ages in place by a number of drafting rounds."""
        self.scale(_FAST_FADE**rounds)

    def scale(self, factor: float) -> None:
        """Weighs everything less, in place."""
        self.asked *= factor
        self.grid *= factor

    def view(self, positions: int, bins: int) -> Counts:
        """The first positions and bins, without a copy."""
        return Counts(self.asked[:positions], self.grid[:, :positions, :bins])

    def floored(self, factor: float) -> Counts:
        """Scaled down to whole numbers, which keeps accepted ≤ verified ≤ drafted."""
        return Counts(np.floor(self.asked * factor), np.floor(self.grid * factor))


def batch_weight(rounds: int) -> float:
    """Mean weight of the rounds of one batch, of which the older ones have faded already.

    With it a batch of any size adds no more than the steady state.
    """
    if rounds <= 1:
        return 1.0
    weight: float = (1.0 - _FAST_FADE**rounds) / ((1.0 - _FAST_FADE) * rounds)
    return weight


def total(counts: Iterable[Counts], positions: int, bins: int = MAX_BINS) -> Counts:
    """The sum of all."""
    result = Counts.zeros(positions, bins)
    for item in counts:
        result.add(item)
    return result


def to_fields(key: CellKey, counts: Counts) -> dict[str, int]:
    """Non-zero sums by field name, as the store keeps them; each within ``MOST_AMOUNT``."""
    head = _SEPARATOR.join((key.drafter, key.request_class, str(key.context_band)))
    fields: dict[str, int] = {}
    for position in np.flatnonzero(counts.asked):
        fields[f"{head}|{_ASKED}|{position}|0"] = _amount(counts.asked[position])
    for kind, position, bin_ in np.argwhere(counts.grid):
        name = f"{head}|{_KINDS[kind]}|{position}|{bin_}"
        fields[name] = _amount(counts.grid[kind, position, bin_])
    return fields


def _amount(value: float) -> int:
    return int(min(value, MOST_AMOUNT))


def from_fields(fields: Mapping[str, float]) -> dict[CellKey, Counts]:
    """Sums by cell; names that are not understood or out of range are left out."""
    cells: dict[CellKey, Counts] = {}
    for name, value in fields.items():
        parsed = _parse(name)
        if parsed is None or not np.isfinite(value) or value < 0:
            continue
        key, kind, position, bin_ = parsed
        counts = cells.setdefault(key, Counts.zeros(MAX_DRAFT_TOKENS))
        if kind == _ASKED:
            counts.asked[position] += value
        else:
            counts.grid[_KINDS.index(kind), position, bin_] += value
    return cells


def _parse(name: str) -> tuple[CellKey, str, int, int] | None:
    parts = name.split(_SEPARATOR)
    if len(parts) != 6 or not all(part.isdecimal() for part in (parts[2], parts[4], parts[5])):
        return None
    drafter, request_class, band, kind, position, bin_ = parts
    known = kind == _ASKED or kind in _KINDS
    if not known or int(position) >= MAX_DRAFT_TOKENS or int(bin_) >= MAX_BINS:
        return None
    return CellKey(drafter, request_class, int(band)), kind, int(position), int(bin_)


def weigh(buckets_newest_first: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums over buckets, halved for every half-life of *activity* in between.

    The age of a bucket is its length times the number of later non-empty ones, so a quiet night
    erases nothing.
    """
    filled = (bucket for bucket in buckets_newest_first if bucket)
    sums: dict[str, float] = {}
    for age, bucket in enumerate(islice(filled, MOST_BUCKETS)):
        weight = _BUCKET_FADE**age
        for name, value in bucket.items():
            sums[name] = sums.get(name, 0.0) + weight * value
    return sums


def merge(into: dict[str, int], fields: Mapping[str, int]) -> None:
    """Adds integer sums in place, up to ``MOST_AMOUNT``; below it exact in any order."""
    for name, value in fields.items():
        into[name] = min(into.get(name, 0) + value, MOST_AMOUNT)
