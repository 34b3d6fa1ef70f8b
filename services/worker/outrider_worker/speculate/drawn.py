"""From the drafts of one request after the other step to the tables that a round takes.

Knows: the shapes of both. Does not know: who drew the drafts, and how.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.speculate.device import Chosen, DeviceDrafts
from outrider_worker.speculate.scores import running_bins


def drafts_of(drawn: Sequence[Chosen], lengths: Tensor, columns: int) -> DeviceDrafts:
    """What was drawn step by step, in tables of so many columns.

    drawn: of each step, for all n requests. lengths: [n] int64, how many of them each may keep.
    """
    if not drawn:
        empty = lengths.new_zeros(len(lengths), columns)
        return DeviceDrafts(empty, lengths, empty)
    behind = (0, columns - len(drawn))
    confidence = torch.stack([each.confidence for each in drawn], dim=1)
    return DeviceDrafts(
        token_ids=pad(torch.stack([each.token_ids for each in drawn], dim=1), behind),
        lengths=lengths,
        bins=pad(running_bins(confidence), behind),
    )
