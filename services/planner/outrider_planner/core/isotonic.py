"""Least-squares fits that do not fall, or do not rise.

Knows nothing of what is fitted: the planner uses it for survival along score bins, mean survival
along positions, and times along row counts.
"""

from __future__ import annotations

import numpy as np

from outrider_planner.core.types import FloatArray


def isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least-squares fit that does not fall along the last axis, of the same shape.

    The minimax form of pool-adjacent-violators: fit_b = max over k ≤ b of the min over l ≥ b of
    mean(k…l); O(S²) and free of loops. Weights must be positive. Weighted sums are preserved.
    """
    size = values.shape[-1]
    if size == 1:
        return values
    zero = np.zeros((*values.shape[:-1], 1))
    weight_sum = np.concatenate([zero, np.cumsum(weights, -1)], -1)
    value_sum = np.concatenate([zero, np.cumsum(values * weights, -1)], -1)
    weight_in = weight_sum[..., None, 1:] - weight_sum[..., :-1, None]
    value_in = value_sum[..., None, 1:] - value_sum[..., :-1, None]
    upper = np.triu(np.ones((size, size), dtype=bool))
    mean = np.where(upper, value_in / np.where(upper, weight_in, 1.0), np.inf)
    least = np.minimum.accumulate(mean[..., ::-1], axis=-1)[..., ::-1]
    fit: FloatArray = np.where(upper, least, -np.inf).max(axis=-2)
    return fit


def falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The same fit, but not rising along the last axis."""
    return isotonic(values[..., ::-1], weights[..., ::-1])[..., ::-1]
