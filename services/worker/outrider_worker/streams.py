"""In-order work on a device, with results that the host fetches later.

Three streams with one meaning: what is submitted runs in order of submission; the tensors it
returns are copied to the host, all in one piece, behind it; `Pending.result` waits for that copy.
*Immediate*: a CPU, where work is done when `submit` returns. *Emulated*: a CPU that behaves like an
accelerator (own thread, a latency), so that running ahead is exercised where there is none.
*Cuda*: kernels are enqueued, an event marks the copy's end.

Work must not read anything the host may change later: it is given tensors made for it.

Knows: order, events, clocks of devices, host copies. Does not know: what the work is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

_ALIGNED_BYTES = 8

Parts = Mapping[str, tuple[torch.dtype, torch.Size]]
"""What a packed tensor is made of, in order."""


class Stopwatch(Protocol):
    """Device time of the parts of one piece of work."""

    def lap(self, part: str) -> None:
        """What ran since the last lap was `part`; laps of one part add up."""
        ...


@dataclass(frozen=True)
class Done:
    """What came back: host tensors by name, device seconds by part."""

    tensors: Mapping[str, Tensor]
    seconds: Mapping[str, float]


class Pending(Protocol):
    """Work in flight."""

    def result(self) -> Done:
        """Wait for it; raises what it raised. To be asked once."""
        ...


Work = Callable[[Stopwatch], Mapping[str, Tensor]]


class DeviceStream(Protocol):
    """One device's queue."""

    @property
    def asynchronous(self) -> bool:
        """Whether the host goes on while work runs."""
        ...

    def submit(self, work: Work) -> Pending:
        """Run `work` behind everything submitted before."""
        ...

    def upload(self, values: Sequence[object] | Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor of host values for work to come; the host's own copy may change at once."""
        ...

    def close(self) -> None:
        """End after what has been submitted."""
        ...


def open_stream(device: torch.device) -> DeviceStream:
    """The stream that fits a device."""
    return CudaStream(device) if device.type == "cuda" else ImmediateStream()


class _HostWatch:
    """Laps by the host's clock: right where the host thread does the work."""

    def __init__(self, since_s: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._since_s = time.perf_counter() if since_s is None else since_s

    def lap(self, part: str) -> None:
        now_s = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now_s - self._since_s
        self._since_s = now_s


@dataclass(frozen=True)
class _Ready:
    """A Pending that waits for nothing."""

    done: Done

    def result(self) -> Done:
        return self.done


class ImmediateStream:
    """Work is done when `submit` returns."""

    asynchronous = False

    def submit(self, work: Work) -> Pending:
        watch = _HostWatch()
        with torch.inference_mode():
            tensors = work(watch)
        return _Ready(Done(tensors, watch.seconds))

    def upload(self, values: Sequence[object] | Tensor, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype)

    def close(self) -> None:
        return


class _Promise:
    """A Pending filled by another thread."""

    def __init__(self) -> None:
        self._filled = threading.Event()
        self._done: Done | None = None
        self._failure: BaseException | None = None

    def fill(self, done: Done | None, failure: BaseException | None = None) -> None:
        self._done, self._failure = done, failure
        self._filled.set()

    def result(self) -> Done:
        self._filled.wait()
        if self._failure is not None:
            raise self._failure
        assert self._done is not None
        return self._done


class EmulatedStream:
    """An accelerator's order of events on a CPU: a thread that works off a queue.

    latency_s: what each piece of work takes at least, from when it could begin (it was submitted,
        and the piece before was over), as if the device were that slow; the rest of it counts as
        time of the work's last part.
    """

    asynchronous = True

    def __init__(self, latency_s: float = 0.0) -> None:
        self._latency_s = latency_s
        self._free_s = 0.0
        self._queue: queue.SimpleQueue[tuple[Work, _Promise, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emulated-device", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> Pending:
        promise = _Promise()
        self._queue.put((work, promise, time.perf_counter()))
        return promise

    def upload(self, values: Sequence[object] | Tensor, dtype: torch.dtype) -> Tensor:
        # A copy always: the host may change its values before the work runs.
        return torch.as_tensor(values, dtype=dtype).clone()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, promise, submitted_s = item
            try:
                promise.fill(self._done(work, max(submitted_s, self._free_s)))
            except BaseException as failure:
                promise.fill(None, failure)

    def _done(self, work: Work, could_begin_s: float) -> Done:
        watch = _HostWatch(could_begin_s)
        with torch.inference_mode():
            tensors = {name: tensor.clone() for name, tensor in work(watch).items()}
        time.sleep(max(0.0, could_begin_s + self._latency_s - time.perf_counter()))
        watch.lap(next(reversed(watch.seconds), "target"))
        self._free_s = time.perf_counter()
        return Done(tensors, watch.seconds)


class _CudaWatch:
    """Laps by events on the stream."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self.lap("")

    def lap(self, part: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((part, event))

    def seconds(self) -> dict[str, float]:
        """To be read once the last event has passed."""
        seconds: dict[str, float] = {}
        for (_, before), (part, after) in zip(self._marks, self._marks[1:], strict=False):
            seconds[part] = seconds.get(part, 0.0) + before.elapsed_time(after) / 1e3
        return seconds


class CudaStream:
    """The current CUDA stream of a device; results come back through pinned memory."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def submit(self, work: Work) -> Pending:
        # Events belong to the current device, which is each thread's own.
        with torch.cuda.device(self._device), torch.inference_mode():
            watch = _CudaWatch()
            packed, parts = pack(work(watch), self._device)
            brings = packed.numel() > 0
            host = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=brings)
            if brings:
                host.copy_(packed, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        return _CudaPending(arrived, host, parts, watch)

    def upload(self, values: Sequence[object] | Tensor, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).pin_memory().to(self._device, non_blocking=True)

    def close(self) -> None:
        torch.cuda.synchronize(self._device)


@dataclass(frozen=True)
class _CudaPending:
    arrived: torch.cuda.Event
    host: Tensor
    parts: Parts
    watch: _CudaWatch

    def result(self) -> Done:
        self.arrived.synchronize()
        return Done(unpack(self.host, self.parts), self.watch.seconds())


def pack(tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> tuple[Tensor, Parts]:
    """One flat byte tensor of all of them, each aligned, and what is needed to unpack it."""
    parts = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    pieces = [torch.empty(0, dtype=torch.uint8, device=device)]
    for tensor in tensors.values():
        raw = tensor.contiguous().view(-1).view(torch.uint8)
        pieces.append(pad(raw, (0, -raw.numel() % _ALIGNED_BYTES)))
    return torch.cat(pieces), parts


def unpack(flat: Tensor, parts: Parts) -> dict[str, Tensor]:
    """The tensors that `pack` was given, as views of `flat`."""
    tensors = {}
    start = 0
    for name, (dtype, shape) in parts.items():
        size = shape.numel() * dtype.itemsize
        tensors[name] = flat[start : start + size].view(dtype).view(shape)
        start += size + -size % _ALIGNED_BYTES
    return tensors
