"""Which tokens min-p, top-k and top-p keep: min-p first, then top-k, then top-p of what these kept.

Knows: the filters and their order. Tokens are ordered by logit and, at a tie, lower id first. Does
not know: whether somebody draws among the survivors or wants their law.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.sampling.columns import DrawColumns

CANDIDATES = 1024
"""Tokens looked at before a whole vocabulary is sorted; nearly always enough for top-p."""


def survivors(
    logits: Tensor, probabilities: Tensor, ids: Tensor, columns: DrawColumns
) -> tuple[Tensor, Tensor]:
    """Scores of candidates `ids` [M, C], −inf where filtered out, and which rows are settled.

    Candidates are the C best in order, and every filter keeps the first so many of them. A row is
    settled when its survivors would be the same had all tokens been candidates.
    """
    count, vocabulary = ids.shape[1], probabilities.shape[1]
    rank = torch.arange(count, device=ids.device)
    mass = probabilities.gather(1, ids)
    limit = torch.where(columns.top_k > 0, columns.top_k, vocabulary).clamp(max=vocabulary)
    likely = mass >= columns.min_p[:, None].double() * mass[:, :1]
    kept = likely & (rank < limit[:, None])
    cut_inside = (limit <= count) | ~likely[:, -1]
    mass = mass.masked_fill_(~kept, 0.0)
    cumulative = mass.cumsum(-1)
    cuts = (columns.top_k > 0) | (columns.min_p > 0)
    total = torch.where(cuts[:, None], cumulative[:, -1:], 1.0)
    top_p = columns.top_p[:, None].double()
    kept &= (cumulative - mass < top_p * total) | (top_p >= 1) | (rank == 0)
    settled = cut_inside | (~cuts & ~kept[:, -1])
    scores = columns.scaled(logits.gather(1, ids)).masked_fill_(~kept, float("-inf"))
    return scores, settled
