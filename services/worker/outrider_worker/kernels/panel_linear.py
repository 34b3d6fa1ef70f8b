"""A linear layer by panels: row-invariant at every row count and thread count, by construction.

Knows: how a weight becomes panels. Does not know: models; how panels are multiplied (panels).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outrider_worker.kernels.compiled import callback
from outrider_worker.kernels.elementwise import LANES
from outrider_worker.kernels.memory import floats, ints
from outrider_worker.kernels.panels import PANEL, set_share
from outrider_worker.kernels.team import find_team, thread_count, thread_index


@callback("void(int64)")
def _multiply(address: int) -> None:
    """A job is [x, weight, bias, out, rows, inner size, outputs]: addresses and sizes."""
    job = ints(address, (7,))
    x, out = floats(job[0], (job[4], job[5])), floats(job[3], (job[4], job[6]))
    set_share(x, job[1], job[2], out, thread_index(), thread_count())


class PanelLinear:
    """y = x Wᵀ + b with W kept in panels (a linear.Linear). See kernels.panels."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [out, in] float32 on a CPU. Raises ValueError for a shape it does not serve."""
        if not self.serves(weight):
            raise ValueError(f"panels need outputs in multiples of {LANES}, not {weight.shape[0]}")
        team = find_team()
        assert team is not None
        self._team = team
        self.outputs, self.inner = weight.shape
        self.panels = torch.cat([part.T.reshape(-1) for part in weight.split(PANEL)])
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[R, in] → [R, out]"""
        x = x.contiguous()
        out = x.new_empty(x.shape[0], self.outputs)
        addresses = (x.data_ptr(), *self.addresses, out.data_ptr())
        job = np.array([*addresses, x.shape[0], self.inner, self.outputs])
        self._team.run(_multiply.address, job.ctypes.data, torch.get_num_threads())
        return out

    @property
    def addresses(self) -> tuple[int, int]:
        """Of the panels and of the bias, 0 for none."""
        return self.panels.data_ptr(), 0 if self.bias is None else self.bias.data_ptr()

    @staticmethod
    def serves(weight: Tensor) -> bool:
        """Whether the weight is a CPU's float32 and its outputs fill whole vectors."""
        return weight.is_cpu and weight.dtype is torch.float32 and weight.shape[0] % LANES == 0
