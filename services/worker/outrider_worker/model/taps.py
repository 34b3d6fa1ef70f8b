"""What a forward passes on its way through the blocks, kept for drafters that read it.

Knows: the boundaries between blocks, by number. Does not know: layers, or who reads features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import Tensor


class Taps:
    """Copies of the residual stream of one forward (the stream itself is used up by the blocks)."""

    def __init__(self, boundaries: Sequence[int], blocks: int, x: Tensor) -> None:
        """boundaries: see CausalLM.forward_with_features; x [R, d] is like what will be taken."""
        outside = [boundary for boundary in boundaries if not 0 <= boundary <= blocks]
        if outside:
            raise ValueError(f"a model of {blocks} blocks has no boundary {outside[0]}")
        self._boundaries, self._blocks = tuple(boundaries), blocks
        self._taken = x.new_empty(x.shape[0], len(self._boundaries), x.shape[1])

    def take(self, boundary: int, x: Tensor) -> None:
        """x [R, d] is the stream after `boundary` blocks: copied if it is wanted."""
        for place, wanted in enumerate(self._boundaries):
            if wanted == boundary:
                self._taken[:, place] = x

    def parts(self) -> Iterator[tuple[int, int]]:
        """(first, end) of the runs of blocks with no wanted boundary inside, in order."""
        ends = sorted({*self._boundaries, self._blocks} - {0})
        return pairwise([0, *ends])

    def features(self, hidden: Tensor) -> Tensor:
        """[R, m·d] in the order of the boundaries; `hidden` [R, d] itself where there are none."""
        return self._taken.flatten(1) if self._boundaries else hidden
