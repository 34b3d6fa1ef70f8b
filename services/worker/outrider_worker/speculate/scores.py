"""Score bins: how likely a draft is thought to survive, as one of sixteen classes.

Knows: survival S_k = P(the first k drafts are accepted) as an estimate, and its bin. Does not know:
where confidences come from, what a bin turns out to be worth (the planner's histograms learn that).
"""

from math import floor, log2

import torch
from torch import Tensor

from outrider_worker.engine.types import MAX_SCORE_BINS

_BINS_PER_HALVING = 2

_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.01, 0.99
"""A drafter is neither sure nor lost: beyond these its own belief says little, and one position
must not decide on all behind it."""


def score_bin(survival: float) -> int:
    """The bin of an estimated survival, two bins for each halving: 15 from 2^-½ up, 0 below 2^-7½.

    Bin b holds 2^((b-16)/2) ≤ S < 2^((b-15)/2).
    """
    if survival <= 0:
        return 0
    place = MAX_SCORE_BINS + floor(_BINS_PER_HALVING * log2(survival))
    return min(max(place, 0), MAX_SCORE_BINS - 1)


def running_bins(confidence: Tensor) -> Tensor:
    """confidence [n, d] in 0…1, each given the drafts before it → [n, d] int64 bins of survival.

    The running product of conditionals, each clipped to 0.01…0.99; the bins are `score_bin`'s.
    """
    clipped = confidence.double().clamp(_LEAST_CONFIDENCE, _MOST_CONFIDENCE)
    halvings = clipped.cumprod(dim=1).log2()
    places = MAX_SCORE_BINS + (_BINS_PER_HALVING * halvings).floor().to(torch.int64)
    return places.clamp_(0, MAX_SCORE_BINS - 1)
