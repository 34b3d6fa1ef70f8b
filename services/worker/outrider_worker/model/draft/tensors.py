"""A drafter's tensors under the names that this package uses.

Knows: that published layouts name one thing differently, and what is then missing or too much.
Does not know: any layout, what the tensors are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.shapes import Shape

_FOLLOWS_FROM_CONFIG = "rotary_emb.inv_freq"
"""Ending of tensors that some checkpoints carry though the configuration gives them."""


@dataclass(frozen=True)
class DraftTensors:
    """Those tensors of an open checkpoint that are a drafter's (a weights.Weights)."""

    checkpoint: Checkpoint
    stored: Mapping[str, str]
    """Our name → name in the checkpoint. What is not listed is no part of the drafter."""
    dtype: torch.dtype
    device: torch.device
    spelled: Callable[[str], str] = str
    """The checkpoint's name for what it should have and has not."""

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def check(self, expected: Mapping[str, Shape], apart: Iterable[str] = ()) -> None:
        """Every tensor of `expected`, and no other but those `apart`, must be there.

        apart: names of tables that are no weights. Raises ModelError with the file's own names.
        """
        wanted = {
            self.stored.get(name) or self.spelled(name): shape for name, shape in expected.items()
        }
        known = set(self.stored.values()) - {self.stored.get(name) for name in apart}
        self.checkpoint.check(
            wanted, lambda name: name not in known or name.endswith(_FOLLOWS_FROM_CONFIG)
        )

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See Weights."""
        return self.checkpoint.tensor(self.stored[name], dtype or self.dtype).to(self.device)


@dataclass(frozen=True)
class OffsetNorms:
    """Weights of which those of norms are stored less `offset` (a weights.Weights)."""

    weights: DraftTensors
    offset: float

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See Weights; norms in float32, which the sum would not survive below."""
        if not self.offset or not name.endswith("norm.weight"):
            return self.weights(name, dtype)
        return self.weights(name, torch.float32) + self.offset
