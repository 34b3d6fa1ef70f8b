"""Judging drafts: which rows the target agrees with, on padded tables.

Shapes: n requests, K drafts at most, tables [n, K] for drafts and [n, K+1] for the target's own
samples (row 0 is the anchor's). All of it runs where the tables are, without a host copy.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """accepted [n] int64; emitted [n, K+1] int64, valid in columns 0…accepted."""

    accepted: Tensor
    emitted: Tensor


class Verifier(Protocol):
    """Decides what is emitted; must leave the target's law unchanged."""

    def verify(
        self, samples: Tensor, drafts: Tensor, lengths: Tensor, seats: Tensor, known: Tensor
    ) -> Verdict:
        """Judge the drafts of one round.

        Args:
            samples: [n, K+1] int64, the target's own token at every row.
            drafts: [n, K] int64, anything beyond a request's length.
            lengths: [n] int64, drafts verified of each request.
            seats: [n] int64, each request's line in the device's state.
            known: [n] int64, tokens known before the round, the anchor included. With the seat it
                names the round, for verifiers that draw noise of their own.
        """
        ...


class SamplerMatch:
    """Accept a draft while it equals the target's own sample, whose noise is fixed by the seed.

    What is emitted is always the target's sample, so the text depends on no draft, plan or pick
    (worker.md "Exactness"). Greedy is the case without noise.
    """

    def verify(
        self, samples: Tensor, drafts: Tensor, lengths: Tensor, seats: Tensor, known: Tensor
    ) -> Verdict:
        """See Verifier.verify; neither seats nor lengths of text make a difference."""
        width = drafts.shape[1]
        places = torch.arange(width, device=drafts.device)
        agreed = (samples[:, :width] == drafts) & (places < lengths[:, None])
        accepted = agreed.to(torch.int64).cumprod(dim=1).sum(dim=1)
        return Verdict(accepted=accepted, emitted=samples)
