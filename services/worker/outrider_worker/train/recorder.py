"""A drafter that drafts nothing: it writes down what drafters are fed.

So a training set holds exactly what a drafter will see when it serves: every committed position
once, with the target's features of it.

Knows: the seam of stateful drafters. Does not know: what features are recorded for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_worker.speculate.device import (
    DeviceDrafts,
    DraftBatch,
    FeatureSpec,
    FedRows,
    StateSize,
)
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits


class Recorder:
    """A StatefulDrafter; features are kept by seat, as float16."""

    def __init__(self, boundaries: Sequence[int], hidden_size: int, context_tokens: int) -> None:
        """boundaries: where features are taken, see FeatureSpec; at least one."""
        self._spec = FeatureSpec(tuple(boundaries))
        self._width, self._context_tokens = self._spec.width(hidden_size), context_tokens
        self._kept = torch.empty(0)

    @property
    def traits(self) -> DrafterTraits:
        """It needs hidden states and nothing else."""
        return DrafterTraits("recorder", DrafterCost.PARALLEL, 0, needs_hidden=True)

    @property
    def feature_spec(self) -> FeatureSpec:
        """See StatefulDrafter."""
        return self._spec

    @property
    def state_size(self) -> StateSize:
        """None on the device: nothing lies in pages, and features are kept by the host."""
        return StateSize(0)

    def allocate(self, seats: int, pages: int) -> None:
        """See StatefulDrafter."""
        self._kept = torch.zeros(seats + 1, self._context_tokens, self._width, dtype=torch.float16)

    def feed(self, fed: FedRows) -> None:
        """See StatefulDrafter."""
        assert fed.features is not None
        self._kept[fed.rows.sequence, fed.rows.positions] = fed.features.half().to("cpu")

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """Nothing, for nobody."""
        nothing = batch.known.new_zeros(batch.known.shape[0], tokens)
        return DeviceDrafts(nothing, torch.zeros_like(batch.known), nothing)

    def recorded(self, seat: int, positions: int) -> Tensor:
        """[positions, m·d] float16 of a seat's first positions; a copy."""
        return self._kept[seat, :positions].clone()
