"""The planner's definitions written as slowly and plainly as possible, to compare with."""

from collections.abc import Sequence
from itertools import product

import numpy as np


def non_increasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Pool adjacent violators, block by block."""
    blocks: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            last, before = blocks.pop(), blocks.pop()
            whole = last[1] + before[1]
            mean = (last[0] * last[1] + before[0] * before[1]) / whole
            blocks.append([mean, whole, last[2] + before[2]])
    return [block[0] for block in blocks for _ in range(int(block[2]))]


class Drafts:
    """What is drafted per request: survival and bin shares (K, S), length survival (K,)."""

    def __init__(self, survival: np.ndarray, share: np.ndarray, length: np.ndarray) -> None:
        self.survival, self.share, self.length = survival, share, length

    def masses(self, n: float, length: int) -> list[tuple[float, float]]:
        """(survival, expected drafts) of every cell for n requests, best first."""
        cells = [
            (self.survival[j, b], n * self.length[j] * self.share[j, b])
            for j in range(length)
            for b in range(self.survival.shape[1])
        ]
        return sorted(cells, reverse=True)

    def flat_survival(self, length: int) -> list[float]:
        mean = [float(self.survival[j] @ self.share[j]) for j in range(length)]
        return non_increasing(mean, [max(w, 1e-12) for w in self.length[:length]])

    def lengths(self, n: int, most: int) -> list[tuple[float, tuple[int, ...]]]:
        """Every outcome of n draft lengths cut at ``most``, with its probability."""
        survival = [1.0, *self.length[:most], 0.0]
        single = [survival[i] - survival[i + 1] for i in range(most + 1)]
        return [
            (float(np.prod([single[i] for i in each])), each)
            for each in product(range(most + 1), repeat=n)
        ]

    def gain(self, n: int, length: int, verify: int) -> float:
        """G by enumeration of all draft lengths."""
        flat_survival = self.flat_survival(length)
        whole = sum(mass for _, mass in self.masses(1, length))
        flat = top = 0.0
        for probability, each in self.lengths(n, length):
            flat += probability * breadth_first(each, flat_survival, verify)
            top += probability * best_first(
                [(s, m / whole * sum(each)) for s, m in self.masses(1, length)], verify
            )
        return flat + (1 - 1 / n) * (top - flat)


def breadth_first(lengths: Sequence[int], survival: Sequence[float], verify: int) -> float:
    left, gained = verify, 0.0
    for position, value in enumerate(survival):
        rows = min(sum(length > position for length in lengths), left)
        gained += rows * value
        left -= rows
    return gained


def best_first(cells: Sequence[tuple[float, float]], verify: float) -> float:
    left, gained = float(verify), 0.0
    for value, mass in cells:
        rows = min(mass, left)
        gained += rows * value
        left -= rows
    return gained
