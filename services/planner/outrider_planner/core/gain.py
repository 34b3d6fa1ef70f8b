"""G(n, d, V): the expected number of accepted drafts of a round.

Knows how survival estimates become a gain: G = G_flat + (1 − 1/n)(G_top − G_flat), each an
expectation over the pool. Does not know costs. Axes: K draft lengths, R levels, C candidates.

G_flat verifies breadth-first over positions; it is exact at n = 1. G_top verifies the V drafts of
highest survival of the pooled histogram, which n chains can do only up to about 1/n. Both are 0
at V = 0, concave, at most V, and equal once V covers the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider_planner.core.histogram import Estimates
from outrider_planner.core.isotonic import falling
from outrider_planner.core.pools import DensePool, Pool, dense_pool, sparse_pool
from outrider_planner.core.types import FloatArray, IntArray

# Chords of the best-first curve. Over a pool of random size every chord costs an expectation.
LEVELS_DENSE, LEVELS_SPARSE = 16, 6
_NO_MASS = 1e-12
# From so many candidates on, one line for each pool is quicker than all levels of all pools.
_MANY_CANDIDATES = 192


@dataclass(frozen=True, slots=True, eq=False)
class GainModel:
    """Everything of G that does not depend on n.

    ``length_survival`` (K,); ``flat_steps`` (K, K): fall of mean survival from position j to
    j + 1 when d positions are drafted; ``level_share`` and ``level_fall`` (K, R): the best share
    y of a pool of length d, and the fall of survival there.
    """

    sparse: bool
    length_survival: FloatArray
    flat_steps: FloatArray
    level_share: FloatArray
    level_fall: FloatArray

    @property
    def positions(self) -> int:
        """K."""
        return int(self.length_survival.size)

    @property
    def survival(self) -> FloatArray:
        """P(first j drafts all accepted) of the drafts at each position, (K,), as G counts them:
        it never rises, and adds up to what is accepted where all K are verified."""
        result: FloatArray = self.flat_steps[-1, ::-1].cumsum()[::-1]
        return result

    def pool(self, requests: int | IntArray) -> Pool:
        """The distribution of the pool of n requests, or of several n, (S,)."""
        if self.sparse:
            return sparse_pool(requests, self.length_survival)
        return dense_pool(requests, self.positions)

    def accepted(
        self,
        requests: int | IntArray,
        pool: Pool,
        verify: FloatArray,
        reached: FloatArray | None = None,
    ) -> FloatArray:
        """G(n, d, V) in drafts, (K, C), for the candidates V, (C,); with S before for several n.

        ``reached``: the pool's E[min(V, m)], (K, C) or (1, C), where it is known already.
        """
        wanted = verify[..., None, :]
        known = pool.expected_min(wanted) if reached is None else reached
        flat: FloatArray = self.flat_steps @ known
        if np.max(requests) == 1:
            return flat
        picked = 1.0 - 1.0 / np.asarray(requests)[..., None, None]
        return flat + picked * (self._top(pool, wanted) - flat)

    def _top(self, pool: Pool, wanted: FloatArray) -> FloatArray:
        """Σ over levels of fall · E[min(V, y·m)], with E[min(V, y·m)] = y·E[min(V/y, m)]."""
        share = self.level_share[:, None, :]
        if isinstance(pool, DensePool) and wanted.shape[-1] > _MANY_CANDIDATES:
            return self._along_chords(pool, wanted)
        if isinstance(pool, DensePool):
            reached = np.minimum(wanted[..., None], share * pool.size[..., None, None])
        else:
            reached = share * pool.expected_min(wanted[..., None] / share)
        top: FloatArray = np.matmul(reached, self.level_fall[:, :, None])[..., 0]
        return top

    def _along_chords(self, pool: DensePool, wanted: FloatArray) -> FloatArray:
        """The same for a pool that is always full, where it is a line through its levels' ends."""
        levels = self.level_share
        worth = (np.minimum(levels[:, :, None], levels[:, None, :]) @ self.level_fall[..., None])[
            ..., 0
        ]
        zero = np.zeros((levels.shape[0], 1))
        knots, values = np.hstack([zero, levels]), np.hstack([zero, worth])
        result = np.empty((*pool.size.shape, wanted.shape[-1]))
        for place in np.ndindex(pool.size.shape):
            size, d = pool.size[place], place[-1]
            result[place] = np.interp(wanted[(*place[:-1], 0)], knots[d] * size, values[d] * size)
        return result


def gain_model(estimates: Estimates, sparse: bool, weights: FloatArray | None = None) -> GainModel:
    """Builds the n-independent parts of G, mixing the classes by their share.

    ``weights`` (C,) multiply the scores by which drafts are picked, not what they are worth.
    """
    mass, by_position, length = _masses(estimates)
    mean = (mass * estimates.survival).sum(axis=(0, 2)) / np.maximum(by_position, _NO_MASS)
    share, fall = _levels(mass, estimates.survival, _order(estimates, weights), _count(sparse))
    return GainModel(sparse, length, _flat_steps(mean, by_position), share, fall)


def class_gains(
    estimates: Estimates, sparse: bool, weights: FloatArray | None = None
) -> tuple[GainModel, ...]:
    """The part of each class in G: V counts the rows of all, accepted are only its drafts.

    The parts are no longer concave: a class may lose a row to another one's better draft.
    """
    mass, by_position, length = _masses(estimates)
    order = _order(estimates, weights)
    parts = []
    for c in range(estimates.class_share.size):
        survival = np.zeros_like(estimates.survival)
        survival[c] = estimates.survival[c]
        mean = (mass * survival).sum(axis=(0, 2)) / np.maximum(by_position, _NO_MASS)
        share, fall = _levels(mass, survival, order, _count(sparse))
        drafted = np.tril(np.ones((mean.size, mean.size)))
        parts.append(GainModel(sparse, length, _falls(drafted * mean), share, fall))
    return tuple(parts)


def _masses(estimates: Estimates) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Drafts by (class, position, bin), by position, and P(a request has so many)."""
    mass = estimates.class_share[:, None, None] * estimates.length[:, :, None] * estimates.bin_share
    by_position: FloatArray = mass.sum(axis=(0, 2))
    return mass, by_position, np.minimum.accumulate(np.clip(by_position, 0.0, 1.0))


def _order(estimates: Estimates, weights: FloatArray | None) -> IntArray:
    """Indices of the (class, position, bin) cells, best score first."""
    scores = estimates.survival if weights is None else weights[:, None, None] * estimates.survival
    return np.argsort(-scores, axis=None, kind="stable")


def _count(sparse: bool) -> int:
    return LEVELS_SPARSE if sparse else LEVELS_DENSE


def _flat_steps(mean: FloatArray, by_position: FloatArray) -> FloatArray:
    """Falls of mean survival along positions, for every d; sums to the mean accepted at n·d.

    Mean survival over a *sparse* pool may rise with the position (long drafts are good drafts);
    the non-increasing fit keeps G concave and its end value.
    """
    positions = mean.size
    drafted = np.tril(np.ones((positions, positions)))
    weights = np.maximum(drafted * by_position, _NO_MASS)
    return _falls(falling(drafted * mean, weights) * drafted)


def _falls(values: FloatArray) -> FloatArray:
    """Fall from each column to the next, to 0 behind the last."""
    after = np.concatenate([values[:, 1:], np.zeros((values.shape[0], 1))], axis=1)
    result: FloatArray = values - after
    return result


def _levels(
    mass: FloatArray, survival: FloatArray, order: IntArray, levels: int
) -> tuple[FloatArray, FloatArray]:
    """The curve of a pool of each length, verified in order, as R chords: (share, fall)."""
    _classes, positions, _bins = mass.shape
    value = survival.reshape(-1)[order]
    position = np.broadcast_to(np.arange(positions)[None, :, None], mass.shape).reshape(-1)[order]
    within = position[None, :] <= np.arange(positions)[:, None]
    cell = mass.reshape(-1)[order] * within
    whole = np.maximum(cell.sum(axis=1, keepdims=True), _NO_MASS)
    share = np.cumsum(cell, axis=1) / whole
    worth = np.cumsum(cell * value, axis=1) / whole
    knots = _knots(share, levels)
    y = np.concatenate([np.zeros((positions, 1)), np.take_along_axis(share, knots, 1)], axis=1)
    h = np.concatenate([np.zeros((positions, 1)), np.take_along_axis(worth, knots, 1)], axis=1)
    width = np.diff(y, axis=1)
    slope = np.where(width > _NO_MASS, np.diff(h, axis=1) / np.maximum(width, _NO_MASS), 0.0)
    return np.maximum(y[:, 1:], _NO_MASS), _falls(slope)


def _knots(share: FloatArray, levels: int) -> IntArray:
    """Cells at which the share of the pool reaches 1/R², 4/R², … 1: (K, R) indices.

    Dense at the top, where the curve bends and small budgets lie. Few cells are all kept, so that
    nothing is lost of a drafter without scores.
    """
    if share.shape[1] <= levels:
        return np.broadcast_to(np.arange(share.shape[1]), share.shape)
    goals = (np.arange(1, levels + 1) / levels) ** 2 - 1e-9
    return np.stack([np.minimum(np.searchsorted(row, goals), row.size - 1) for row in share])
