"""Draws on CPUs, as jobs for the threads that torch computes on.

Knows: how columns become jobs (kernels.race, kernels.filtered_draw). Does not know: requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_worker.kernels import filtered_draw, race
from outrider_worker.kernels.team import Team
from outrider_worker.sampling.columns import DrawColumns


class TeamDraw:
    """Draws for rows in memory: logits [M, V] float32, all of rows that draw → tokens [M] int64.

    Every token is that of the code in torch's operations, however many threads there are.
    """

    def __init__(self, team: Team) -> None:
        self._team = team

    def among_all(self, logits: Tensor, columns: DrawColumns) -> Tensor:
        """Of rows without filters. Every thread takes its part of every row."""
        threads = torch.get_num_threads()
        tokens = torch.zeros(threads, len(logits), dtype=torch.int64)
        values = torch.full(tokens.shape, float("-inf"), dtype=torch.float64)
        written = {"tokens": tokens, "values": values}
        self._run(race.RACE, race.JOB, logits, columns, written, threads)
        # Of equal values the first: parts are in order of their tokens.
        return tokens.gather(0, values.argmax(0, keepdim=True)).squeeze(0)

    def among_kept(self, logits: Tensor, columns: DrawColumns) -> Tensor:
        """Of rows with filters. Every thread takes its rows."""
        threads = min(torch.get_num_threads(), len(logits))
        tokens = torch.zeros(len(logits), dtype=torch.int64)
        keys = torch.empty(threads, logits.shape[1], dtype=torch.int64)
        written = {"tokens": tokens, "keys": keys}
        address, layout = filtered_draw.DRAW_FILTERED, filtered_draw.JOB
        self._run(address, layout, logits, columns, written, threads)
        return tokens

    def _run(
        self,
        address: int,
        layout: np.dtype[Any],
        logits: Tensor,
        columns: DrawColumns,
        written: Mapping[str, Tensor],
        threads: int,
    ) -> None:
        # The dict keeps what is copied alive as long as the job runs.
        arrays = {"logits": logits.contiguous(), **written}
        for name in set(layout.names or ()) - {*arrays, "rows", "vocabulary"}:
            arrays[name] = getattr(columns, name).contiguous()
        job: NDArray[np.void] = np.zeros(1, layout)
        for name, array in arrays.items():
            job[name] = array.data_ptr()
        job["rows"], job["vocabulary"] = logits.shape
        self._team.run(address, job.ctypes.data, threads)
