"""How a head begins, which is worth more than data: close to what its target already computes.

A head whose layer is a copy of the target's last one works at once if what it is given resembles
what that layer was given one position further on. The product that joins token and hidden state is
therefore fitted to it, in closed form:

    W = argmin Σ |x_{i+1} − W [enorm(E[t_{i+1}]) ‖ hnorm(h_i)]|² + λ|W|²

with x the residual stream before the last block. (EAGLE-1 learns this regression by descent, Li et
al. 2024, section 3.1.)

Knows: that fit. Does not know: kinds that have no such product, training.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from outrider_worker.train.batches import Batch
from outrider_worker.train.heads import MtpEagleHead

_RIDGE = 1e-3
"""λ, as a share of the inputs' mean square."""


@torch.no_grad()
def fit_joint(head: MtpEagleHead, batches: Iterable[Batch]) -> float:
    """Set `eh_proj` from batches that hold the stream before the last block.

    Returns the share of that stream's variance that is explained.
    """
    d = head.norm.weight.shape[0]
    inputs = torch.zeros(2 * d, 2 * d, dtype=torch.float64)
    crossed = torch.zeros(2 * d, d, dtype=torch.float64)
    squares, rows = torch.zeros(d, dtype=torch.float64), 0
    total = torch.zeros(d, dtype=torch.float64)
    for batch in batches:
        a, x = (found.cpu() for found in _pairs(head, batch))
        inputs += (a.T @ a).double()
        crossed += (a.T @ x).double()
        squares += x.double().square().sum(0)
        total += x.double().sum(0)
        rows += len(x)
    ridge = _RIDGE * inputs.diagonal().mean()
    solved = torch.linalg.solve(inputs + ridge * torch.eye(2 * d, dtype=torch.float64), crossed)
    head.eh_proj.weight.copy_(solved.T)
    missed = squares - 2 * (solved * crossed).sum(0) + (solved * (inputs @ solved)).sum(0)
    varied = squares - total.square() / max(1, rows)
    return float(1 - (missed / varied.clamp(min=1e-12)).mean())


def _pairs(head: MtpEagleHead, batch: Batch) -> tuple[Tensor, Tensor]:
    """[N, 2d] inputs and [N, d] what they should become, of all real pairs but a text's first.

    A text's first positions hold a few huge entries (attention's sink) that would be all the fit.
    """
    assert batch.columns.before is not None, "the stream before the last block was not stored"
    ids, streams = batch.token_ids, batch.stored[..., batch.columns.before]
    pairs = torch.arange(1, ids.shape[1] - 2, device=ids.device)
    embedded = functional.embedding(ids[:, pairs + 1], head.get_buffer("embedding"))
    joint = head.pair(embedded, head.fuse(batch.features[:, pairs]))
    real = pairs + 2 < batch.lengths[:, None]
    return joint[real], streams[:, pairs + 1][real]
