"""What a head is trained to: the target's own law over what can be drafted, at every step.

Knows: the loss. Does not know: how logits or batches come about.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.train.batches import Batch
from outrider_worker.train.target import TargetWeights


def unrolled_loss(
    logits: list[Tensor],
    batch: Batch,
    target: TargetWeights,
    kept_ids: Tensor,
    kept: Tensor,
    step_decay: float,
) -> Tensor:
    """Cross-entropy with the target's law, renormalised over the reduced vocabulary.

    Rows whose token cannot be drafted are left out. kept: [V] bool, the tokens of kept_ids [Vd].
    Draft s counts step_decay**s.
    """
    table, total, weights = target.head[kept_ids], logits[0].new_zeros(()), 0.0
    for step, scores in enumerate(logits):
        tokens, there = batch.targets(step)
        counted = there & kept[tokens]
        with torch.no_grad():
            law = (target.normed(batch.teacher(step)[counted]) @ table.T).softmax(-1)
        found = scores[counted].log_softmax(-1)
        weight = step_decay**step
        total = total - weight * (law * found).sum() / counted.sum().clamp(min=1)
        weights += weight
    return total / weights
