"""How the kernels are compiled: once per machine and version, then read from the user's cache.

Knows: the compiler's options and where its results are kept. Does not know: any kernel.

Numba keeps a compiled function until the file it stands in changes, and does not look at the files
of the functions it calls. So the folder's name is a digest of all kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba

from outrider_worker.cache import user_cache

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


numba.config.CACHE_DIR = str(user_cache() / "kernels" / _digest())


def inlined(function: _Function) -> _Function:
    """A piece of kernels, compiled into those that call it."""
    compiled: _Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled


def callback(signature: object) -> Callable[[_Function], Any]:
    """Compile a function that code in C calls; what comes back has its `address`."""
    return numba.cfunc(signature, **{key: _OPTIONS[key] for key in ("error_model", "cache")})
