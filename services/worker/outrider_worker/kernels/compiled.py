"""How the kernels are compiled: once per machine and version, then read from the user's cache.

Knows: the compiler's options and where its results are kept. Does not know: any kernel.

Numba keeps a compiled function until the file it stands in changes, and does not look at the files
of the functions it calls. So the folder's name is a digest of all kernels. Workers that start
together on a new machine compile each kernel once: one does, the others wait for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

from outrider_worker.cache import one_at_a_time, user_cache

_Function = TypeVar("_Function", bound=Callable[..., object])

# Products may be fused with sums (a fused operation is fused wherever an element lies: the loops
# have the same shape for every row). Sums may not be reordered, infinities and NaN are kept.
_OPTIONS = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy", "cache": True}


def _digest() -> str:
    """Of all sources of kernels."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


# NUMBA_CACHE_DIR is honoured.
_folder = Path(numba.config.CACHE_DIR or user_cache() / "kernels") / _digest()
numba.config.CACHE_DIR = str(_folder)


def shared(function: _Function) -> _Function:
    """A piece of kernels that is compiled once and called from several places."""
    compiled: _Function = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: _Function) -> _Function:
    """A piece of kernels, compiled into those that call it."""
    compiled: _Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled


def pasted(function: _Function) -> _Function:
    """A part of one large kernel, put into it before either is compiled: quicker to compile."""
    compiled: _Function = numba.njit(inline="always", **_OPTIONS)(function)
    return compiled


def callback(signature: str) -> Callable[[Callable[..., None]], Any]:
    """Compile a function that code in C calls, at once; what comes back has its `address`."""
    compiler = numba.cfunc(signature, error_model="numpy", cache=True)

    def compile_or_find(function: Callable[..., None]) -> Any:
        with one_at_a_time(_folder):
            return compiler(function)

    return compile_or_find
