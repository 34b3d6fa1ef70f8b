"""Which drafts get a row, decided on the device: the twin of `select` for a pool it alone knows.

The same picks as `select` makes on the host, ties included: scores are float64, as they are there.
Scores never rise along a chain, so the V best drafts are a prefix of each chain.

Letters: n requests, K drafts at most, C classes, P positions and 16 bins that a map tells apart.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_worker.engine.plans import ScoreMap
from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.speculate.select import survival_of


def survival_table(maps: Sequence[ScoreMap | None], positions: int) -> Tensor:
    """One drafter's maps by class, written out: [C, positions, 16] float64, made once per plan.

    None stands for a class without a map; it gets the prior.
    """
    table = [
        [[survival_of(each, place, score_bin) for score_bin in range(MAX_SCORE_BINS)]
         for place in range(positions)]
        for each in maps
    ]  # fmt: skip
    return torch.tensor(table, dtype=torch.float64).view(len(maps), positions, MAX_SCORE_BINS)


def chain_scores(
    bins: Tensor, lengths: Tensor, survival: Tensor, class_row: Tensor, weight: Tensor
) -> Tensor:
    """Estimated survival of each draft, times its class weight, non-increasing along a chain.

    Args:
        bins: [n, K] int64, 0…15; anything at and behind a request's length.
        lengths: [n] int64, drafts of each request.
        survival: [C, ≥ K, 16] float64, see `survival_table`.
        class_row: [n] int64, each request's line there.
        weight: [n] float64 ≥ 0, each request's class weight, the most a score can be.

    Returns:
        [n, K] float64; 0 at and behind a request's length.
    """
    places = torch.arange(bins.shape[1], device=bins.device)
    missing = places >= lengths[:, None]
    known_bins = bins.masked_fill(missing, 0)
    scores = weight[:, None] * survival[class_row[:, None], places, known_bins]
    scores = torch.minimum(scores, weight[:, None]).masked_fill_(missing, 0.0)
    return scores.cummin(dim=1).values if bins.shape[1] else scores


def pick(scores: Tensor, lengths: Tensor, verify: int) -> Tensor:
    """How many drafts of each chain to verify so that the `verify` best are.

    Args:
        scores: [n, K] floating, non-increasing along a chain; anything behind its length.
        lengths: [n] int64, drafts of each request.
        verify: drafts to pick in all; more than exist picks everything.

    Returns:
        counts [n] int64. Ties go to the smaller position, then to the earlier chain.
    """
    requests, width = scores.shape
    exists = torch.arange(width, device=scores.device) < lengths[:, None]
    # Position by position, so that a stable sort settles ties as promised.
    flat = scores.masked_fill(~exists, float("-inf")).t().flatten()
    best = flat.sort(descending=True, stable=True).indices[:verify]
    picked = torch.zeros_like(flat, dtype=torch.bool).index_fill_(0, best, True)
    return (picked.view(width, requests) & exists.t()).sum(dim=0)
