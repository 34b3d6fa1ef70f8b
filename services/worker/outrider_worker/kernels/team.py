"""Runs a kernel on the threads that torch's own products run on.

A second team of threads in one process would fight the first for the cores while it spins
(docs/adr/0008), so kernels that are worth more than one thread ask the OpenMP library that torch is
linked to: a parallel region started from the thread that runs the model finds that thread's team.

Knows: OpenMP's entry points. Does not know: what is computed, or how it is shared out.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import llvmlite.binding
import torch
from numba import types

thread_index = types.ExternalFunction("omp_get_thread_num", types.int32())
"""Within kernels: which of the team this is; 0 outside of a parallel region."""

thread_count = types.ExternalFunction("omp_get_num_threads", types.int32())
"""Within kernels: how many there are; 1 outside of a parallel region."""

barrier = types.ExternalFunction("GOMP_barrier", types.void())
"""Within kernels: wait for the whole team; nothing outside of a parallel region."""

_NO_FLAGS = 0
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint, ctypes.c_uint)


class Team:
    """The threads of an OpenMP library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError where the library lacks an entry point."""
        for function in (thread_index, thread_count, barrier):
            llvmlite.binding.add_symbol(function.symbol, _address(library, function.symbol))
        self._parallel = _PARALLEL(_address(library, "GOMP_parallel"))

    def run(self, work_address: int, job_address: int, threads: int) -> None:
        """Run compiled work on so many threads at once, all with the same job.

        The interpreter lock is let go of meanwhile.
        """
        if threads == 1:
            _CALL(work_address)(job_address)
        else:
            self._parallel(work_address, job_address, threads, _NO_FLAGS)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def find_team() -> Team | None:
    """The team of the OpenMP library that torch is linked to, None for builds without."""
    torch_itself = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return Team(ctypes.CDLL(str(torch_itself)))  # looks in what a library is linked to, too
    except (OSError, AttributeError):
        return None
