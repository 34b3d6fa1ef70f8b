"""Runs a kernel on the threads that torch's own products run on.

A second team of threads in one process would fight the first for the cores while it spins
(docs/adr/0008), so kernels that are worth more than one thread ask the OpenMP library that torch is
linked to: a parallel region started from the thread that runs the model finds that thread's team.

Knows: OpenMP's entry points. Does not know: what is computed, or how it is shared out.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import llvmlite.binding
import torch
from numba import types

_ENTRY_POINTS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class NoTeam(RuntimeError):
    """This build of torch is linked to no OpenMP library that kernels could use."""


def _entry_point(name: str) -> int:
    """Address of a function of the OpenMP library that torch loaded. Raises NoTeam."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = getattr(ctypes.CDLL(str(library)), name)  # also looks in what it is linked to
    except (OSError, AttributeError) as error:
        raise NoTeam(f"torch offers no OpenMP: {error}") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_ADDRESSES = {name: _entry_point(name) for name in _ENTRY_POINTS}
for _name, _address in _ADDRESSES.items():
    llvmlite.binding.add_symbol(_name, _address)

thread_index = types.ExternalFunction("omp_get_thread_num", types.int32())
"""Within kernels: which of the team this is; 0 outside of a parallel region."""

thread_count = types.ExternalFunction("omp_get_num_threads", types.int32())
"""Within kernels: how many there are; 1 outside of a parallel region."""

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_parallel = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
)(_ADDRESSES["GOMP_parallel"])
_NO_FLAGS = 0


class TeamWork:
    """Compiled code that takes the address of its job."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._alone = _Work(address)

    def __call__(self, job_address: int, threads: int) -> None:
        """Run it on `threads` threads at once, all with the same job; the lock is let go of."""
        if threads == 1:
            self._alone(job_address)
        else:
            _parallel(self._address, job_address, threads, _NO_FLAGS)
