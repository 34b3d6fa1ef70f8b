"""From addresses in a job's record to arrays.

Knows: pointers. Does not know: what they point to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, from_dtype, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from outrider_worker.kernels.compiled import inlined


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


def records(layout: np.dtype[Any]) -> Callable[[int, int], Any]:
    """How kernels read [count] records of a layout at an address."""
    kind = types.CPointer(from_dtype(layout))

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), generate

    @inlined
    def read(address: int, count: int) -> Any:
        return carray(pointer(address), (count,))

    return read


@inlined
def floats(address: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array at an address, row-major."""
    return carray(_pointer(address), shape, np.float32)


@inlined
def ints(address: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The array at an address, row-major."""
    return carray(_pointer(address), shape, np.int64)
