"""All that differs between the device that is checked and a dry run on a CPU, in one value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch

from benchmarks import measure
from outrider_worker.graphs import Capture, CudaCapture
from outrider_worker.numerics import choose_dtype
from outrider_worker.streams import CudaStream, DeviceStream, EmulatedStream

T = TypeVar("T")


class NoGpu(Exception):
    """There is no GPU to check."""


def repeat(work: Callable[[], T]) -> Callable[[], T]:
    """Stands in for a graph where there is none: does the work again (a Capture)."""
    work()
    return work


@dataclass(frozen=True)
class Machine:
    """dry: tiny sizes on a CPU, to see that the script runs."""

    device: torch.device
    dry: bool

    @classmethod
    def choose(cls, dry: bool) -> Machine:
        """The first GPU, or with `dry` the CPU. Raises NoGpu where there is none."""
        if dry:
            return cls(torch.device("cpu"), dry)
        if not torch.cuda.is_available():
            raise NoGpu("no CUDA device here; --dry-run runs tiny sizes on the CPU")
        return cls(torch.device("cuda", torch.cuda.current_device()), dry)

    @property
    def dtype(self) -> torch.dtype:
        """What it serves in."""
        return choose_dtype(self.device)

    @property
    def attention(self) -> str:
        """Its backend. (The other one runs on a CPU too, in an interpreter, very slowly.)"""
        return "triton" if self.device.type == "cuda" else "blocks"

    def capture(self) -> Capture:
        return CudaCapture() if self.device.type == "cuda" else repeat

    def stream(self) -> DeviceStream:
        return CudaStream(self.device) if self.device.type == "cuda" else EmulatedStream()

    def finish(self) -> None:
        """Wait until it has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def milliseconds(self, work: Callable[[], object], runs: int) -> measure.Series:
        """Each run's time, launch included, after two that are not counted."""
        series = measure.Series()
        for run in range(runs + 2):
            self.finish()
            began_s = time.perf_counter()
            work()
            self.finish()
            if run >= 2:
                series.add((time.perf_counter() - began_s) * 1e3)
        return series

    def describe(self) -> dict[str, Any]:
        """Device and versions, beside what is said of the host."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {
            **measure.machine(),
            "gpu": gpu,
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "triton": _version("triton"),
            "transformers": _version("transformers"),
        }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
