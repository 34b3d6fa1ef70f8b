"""Kernels of our own for float32 on CPUs, where a step of torch's operations costs more than it
computes: while a decoder's weights stream through the caches, the interpreter and every operator
come back cold, so that the least operation takes 5 to 10 µs.

Compiled when they are first imported: a quarter of a minute on a new machine, under a second from
then on.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

__all__ = ["have_kernels"]


@lru_cache(maxsize=1)
def have_kernels() -> bool:
    """Whether Numba is installed and torch's threads can be borrowed."""
    if find_spec("numba") is None:
        return False
    from outrider_worker.kernels.team import find_team

    return find_team() is not None
