"""A device whose time is counted, not spent: overlap can be measured to the microsecond."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.streams import Done, Pending, Work


@dataclass
class HostClock:
    """What the host's clock says; moves only when told."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Laps:
    """Notes which parts ran; they share the time that their work takes."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def lap(self, part: str) -> None:
        self.parts.append(part)


@dataclass(frozen=True)
class _Due:
    clock: HostClock
    ends_s: float
    done: Done

    def result(self) -> Done:
        self.clock.now_s = max(self.clock.now_s, self.ends_s)
        return self.done


class VirtualStream:
    """Every piece of work that computes takes `work_s` of the device, one after the other."""

    asynchronous = True

    def __init__(self, clock: HostClock, work_s: float) -> None:
        self._clock = clock
        self._work_s = work_s
        self._free_s = 0.0

    def submit(self, work: Work) -> Pending:
        laps = _Laps()
        with torch.inference_mode():
            tensors: Mapping[str, Tensor] = work(laps)
        taken_s = self._work_s if laps.parts else 0.0
        self._free_s = max(self._free_s, self._clock.now_s) + taken_s
        seconds = {laps.parts[0]: taken_s} if laps.parts else {}
        return _Due(self._clock, self._free_s, Done(tensors, seconds))

    def upload(self, values: Sequence[object] | Tensor, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).clone()

    def close(self) -> None:
        return
