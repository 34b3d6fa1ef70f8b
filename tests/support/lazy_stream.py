"""A device that is as late as it can be: nothing runs before the host waits for it.

Without threads and so the same every time. Whoever reads on the host what the device has not
computed yet, or changes what it has not read yet, gets it wrong here.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider_worker.streams import Done, Work


class _NoWatch:
    """Laps of a device whose time is not looked at."""

    def lap(self, part: str) -> None:
        return


@dataclass
class _Due:
    stream: "LazyStream"
    work: Work
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def result(self) -> Done:
        self.stream.run_until(self)
        return Done(self.tensors, {})


class LazyStream:
    """Runs what was submitted, in order, up to what the host asks for (a DeviceStream)."""

    asynchronous = True

    def __init__(self) -> None:
        self._queue: deque[_Due] = deque()

    @property
    def waiting(self) -> int:
        """Pieces of work that have not run."""
        return len(self._queue)

    def submit(self, work: Work) -> _Due:
        self._queue.append(_Due(self, work))
        return self._queue[-1]

    def upload(self, values: Sequence[object] | Tensor, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).clone()

    def run_until(self, due: _Due | None = None) -> None:
        """Run everything up to `due`; all there is without one."""
        while self._queue and (due is None or due in self._queue):
            each = self._queue.popleft()
            with torch.inference_mode():
                tensors = each.work(_NoWatch())
                each.tensors = {name: tensor.clone() for name, tensor in tensors.items()}

    def close(self) -> None:
        self.run_until()
