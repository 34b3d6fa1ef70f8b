"""Lists of ids of different lengths as one tensor, a line each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

NO_TOKEN = -1
"""Fills up lists of ids."""


def uploaded(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Host values on the device, without waiting for what runs there."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


class PaddedLists:
    """A list for each line (axes = 1), or a list of equally long lists (axes = 2).

    `tensor` is [lines, width(, inner width)], filled up with `fill`. Widths grow in powers of two
    and never shrink, so that they settle soon.
    """

    def __init__(
        self, lines: int, axes: int, fill: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._fill = fill
        self._used: set[int] = set()
        self.tensor = torch.full((lines, *[0] * axes), fill, dtype=dtype, device=device)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[1:])

    def put(self, line: int, values: Sequence[float] | Sequence[Sequence[int]]) -> None:
        """Replace a line; a line that is empty and stays empty costs nothing."""
        if line in self._used:
            self.tensor[line] = self._fill
            self._used.remove(line)
        if values:
            block = uploaded(values, self.tensor.dtype, self.tensor.device)
            self._make_room(block.shape)
            self.tensor[line][_corner(block.shape)] = block
            self._used.add(line)

    def _make_room(self, needed: Sequence[int]) -> None:
        old = self.tensor
        widths = [
            max(have, _power_of_two(want)) for have, want in zip(self.widths, needed, strict=True)
        ]
        if tuple(widths) == self.widths:
            return
        # An ordinary tensor, wherever this is called: others can be written to in one mode only.
        with torch.inference_mode(False):
            self.tensor = old.new_full((len(old), *widths), self._fill)
            self.tensor[_corner(old.shape)] = old


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)


def _power_of_two(wanted: int) -> int:
    """The next one at or above `wanted`; 0 stays 0."""
    return 1 << (wanted - 1).bit_length() if wanted else 0
