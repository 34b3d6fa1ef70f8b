"""The settings of a training run and the rate at every step.

Knows: numbers. Does not know: tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Two runs with the same recipe over the same training set give the same head."""

    steps: int = 300
    texts_per_step: int = 16
    rows_per_text: int = 64
    """Pairs drawn from each text's answer; neighbours teach much the same."""
    unrolled_steps: int = 3
    draft_vocab: int = 4096
    copied_rate: float = 3e-4
    """Peak learning rate of what was copied from the target or fitted to it"""
    new_rate: float = 1e-3
    """Peak learning rate of all else"""
    warm_up: float = 0.05
    """Share of the steps"""
    final_rate: float = 0.05
    """Share of the peak that is left at the end of the cosine"""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 0.5
    """Largest norm of the gradient"""
    evaluate_every: int = 50
    evaluated_texts: int = 24
    """Of each set, in evaluations on the way"""
    seed: int = 0

    def rate(self, step: int) -> float:
        """Share of the peak rate at `step`: a linear rise, then half a cosine."""
        rise = max(1, round(self.warm_up * self.steps))
        if step < rise:
            return (step + 1) / rise
        fall = (step - rise) / max(1, self.steps - rise)
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * fall)) / 2
