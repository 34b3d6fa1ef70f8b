"""The settings of a training run and the rate at every step.

Knows: numbers. Does not know: tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Recipe:
    """Two runs with the same recipe over the same training set give the same head."""

    steps: int = 600
    texts_per_step: int = 16
    rows_per_text: int = 64
    """Pairs drawn from each text's answer; neighbours teach much the same."""
    unrolled_steps: int = 2
    """Drafts in a row that are trained, each from the head's own hidden state of the one before"""
    step_decay: float = 0.6
    """A draft counts so much as the one before it (FastMTP, Cai et al. 2025, section 3.2)"""
    draft_vocab: int = 4096
    copied_rate: float = 6e-4
    """Peak learning rate of what was copied from the target or fitted to it"""
    new_rate: float = 1e-3
    """Peak learning rate of all else"""
    warm_up_steps: int = 20
    decay: float = 0.2
    """Share of the steps, at their end, in which the rate falls to nothing"""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 0.5
    """Largest norm of the gradient"""
    bfloat16: bool = False
    """Products in bfloat16, see `products`"""
    evaluate_every: int = 50
    evaluated_texts: int = 24
    """Of each set, in evaluations on the way"""
    evaluated_drafts: int = 3
    seed: int = 0

    @property
    def fall(self) -> int:
        """The step at which the rate begins to fall: no step before depends on `steps`."""
        return self.steps - round(self.decay * self.steps)

    def rate(self, step: int) -> float:
        """Share of the peak rate at `step`: up, level, and down as 1 − √ (Hägele et al. 2024,
        arXiv 2405.18392, section 3.2)."""
        up = min(1.0, (step + 1) / max(1, self.warm_up_steps))
        gone = max(0, step - self.fall) / max(1, self.steps - self.fall)
        return up * (1 - math.sqrt(gone))

    def goes_on_from(self, other: Recipe, steps_done: int) -> bool:
        """Whether a run of `other` that is so far is a run of this recipe as well: the number of
        steps may differ as long as neither has begun to slow down."""
        same = replace(other, steps=self.steps) == self
        return self == other or (same and steps_done <= min(self.fall, other.fall))
