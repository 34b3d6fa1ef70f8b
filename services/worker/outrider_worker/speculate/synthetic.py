"""Acceptance made to order, for benchmarks: any shape, even with random weights, under the
acceptance of a real workload.

Drafts are accepted as often as a given survival curve says, whatever the target thinks of them, so
the text is worthless; only times are worth measuring. That is why it is in no registry: nothing
but code that constructs both halves can turn it on, and the name "synthetic" shows wherever
drafters are named.

Knows: the curve, S_j = P(the first j drafts are accepted). Does not know: models, requests.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.philox import uniform
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.scores import score_bin
from outrider_worker.speculate.verify import Coupled, JudgedRows, Verdict


class SyntheticDrafter:
    """Full-length drafts that cost next to nothing (a DeviceDrafter).

    The tokens are the request's latest ones, newest first: valid, and varied enough for a mixture
    of experts. The score bin of a draft tells its position's survival, not one request from
    another, so picking by score gains nothing over going position by position.
    """

    def __init__(self, survival: Sequence[float], device: torch.device | str = "cpu") -> None:
        """`survival`: S_1, S_2, …; drafts are as long as this at most. See `score_bin`."""
        bins = [score_bin(each) for each in _checked(survival)]
        self._bins = torch.tensor(bins, device=device)
        self._traits = DrafterTraits(
            name="synthetic",
            cost=DrafterCost.PARALLEL,
            max_draft_tokens=len(bins),
            score_bins=MAX_SCORE_BINS,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """See DeviceDrafter.propose."""
        deepest = len(self._bins)
        places = torch.arange(tokens, device=batch.known.device)
        source = (batch.known[:, None] - 1 - places).clamp(min=0)
        return DeviceDrafts(
            token_ids=batch.history[batch.seats[:, None], source],
            lengths=batch.limit.clamp(min=0, max=min(tokens, deepest)),
            bins=self._bins[places.clamp(max=deepest - 1)].expand(len(batch.seats), -1),
        )


class SyntheticVerifier(Coupled):
    """Accepts by the curve (a Verifier that does *not* keep the target's law).

    The noise is a function of the seed, the seat and the tokens known: one number u for each
    round of a request, of which the first j drafts are accepted if u < S_j. So the outcome does
    not depend on the batch, and a longer draft extends what a shorter one would have given.
    """

    name = "synthetic"

    def __init__(
        self, survival: Sequence[float], seed: int, device: torch.device | str = "cpu"
    ) -> None:
        """`survival`: S_1, S_2, …; drafts behind its end are never accepted. seed: an int64."""
        self._survival = torch.tensor(_checked(survival), dtype=torch.float64, device=device)
        self._seed = seed

    def verify(self, rows: JudgedRows) -> Verdict:
        """See Verifier.verify; what is emitted are the target's samples."""
        return Verdict(
            accepted=torch.minimum(self.forced(rows.seats, rows.known), rows.lengths),
            emitted=rows.samples(),
        )

    def forced(self, seats: Tensor, known: Tensor) -> Tensor:
        """[n] how many drafts the curve accepts in the rounds of `seats` at `known` tokens."""
        one_each = torch.zeros_like(seats)[:, None]
        u = uniform(one_each, torch.full_like(seats, self._seed), choice=seats, index=known)
        return (u < self._survival).sum(dim=1)


def _checked(survival: Sequence[float]) -> list[float]:
    """The curve as a list; ValueError for what is none."""
    curve = list(survival)
    falling = all(earlier >= later for earlier, later in pairwise(curve))
    if not curve or not falling or not 0 <= curve[-1] <= curve[0] <= 1:
        raise ValueError(f"a survival curve falls from at most 1 to at least 0, this is {curve}")
    return curve
