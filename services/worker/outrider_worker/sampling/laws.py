"""The law that a row's token is drawn from, as probabilities; `draw` runs the same to a token.

Knows: temperature, filters, and that a greedy row's law is a point. Does not know: noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.sampling.columns import DrawColumns
from outrider_worker.sampling.draw import greedy
from outrider_worker.sampling.filters import CANDIDATES, survivors
from outrider_worker.sampling.rank import ranked
from outrider_worker.sampling.rows import picks_rows
from outrider_worker.sampling.stages import Stages


def law(logits: Tensor, columns: DrawColumns, stages: Stages, sparse: bool | None = None) -> Tensor:
    """Adjusted logits [R, V] float32 → [R, V] float64, each row sums to 1; 0 = cannot be drawn.

    Takes 8 bytes for each entry and several times that while sorting: callers with many rows go
    part by part. A row's bits depend on its own logits and entries of the columns alone.

    Args:
        stages: joined over the rows' requests; DRAW and FILTER matter here.
        sparse: as in `chain.sample`.
    """
    weights = torch.full(logits.shape, float("-inf"), dtype=torch.float64, device=logits.device)
    weights.scatter_(1, greedy(logits)[:, None], 0.0)
    if Stages.DRAW not in stages:
        return weights.exp_()
    if not (picks_rows(logits) if sparse is None else sparse):
        drawn = _filtered(logits, columns, logits.shape[1])[0]
        return torch.where(columns.draws[:, None], drawn, weights).softmax(-1)
    free, filtered = columns.draws & ~columns.filters, columns.draws & columns.filters
    for rows, some_weights in ((free, _free), (filtered, _settled)):
        chosen = rows.nonzero().squeeze(1)
        if chosen.numel():
            part = some_weights(logits.index_select(0, chosen), columns.take(chosen))
            weights.index_copy_(0, chosen, part)
    return weights.softmax(-1)


def _free(logits: Tensor, columns: DrawColumns) -> Tensor:
    """[M, V] → [M, V] log-weights, of rows without filters."""
    return columns.scaled(logits)


def _settled(logits: Tensor, columns: DrawColumns) -> Tensor:
    """The same of rows with filters, looking at the best candidates first."""
    weights, settled = _filtered(logits, columns, min(CANDIDATES, logits.shape[1]))
    rest = (~settled).nonzero().squeeze(1)
    if rest.numel():
        weights[rest] = _filtered(logits[rest], columns.take(rest), logits.shape[1])[0]
    return weights


def _filtered(logits: Tensor, columns: DrawColumns, candidates: int) -> tuple[Tensor, Tensor]:
    """Log-weights [M, V], −inf where filtered out, and which rows so many candidates settle."""
    scaled = columns.scaled(logits)
    ids = ranked(logits, candidates)
    scores, settled = survivors(logits, scaled.softmax(-1), ids, columns)
    return torch.full_like(scaled, float("-inf")).scatter_(1, ids, scores), settled
