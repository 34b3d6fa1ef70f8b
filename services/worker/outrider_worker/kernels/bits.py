"""The bits of one kind of number, read as another kind, within kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def reinterpreted(source: types.Type, target: types.Type, moved_up: int = 0) -> Any:
    """How kernels read the bits of a `source` as a `target` of the same width.

    moved_up: places that the bits are shifted to the left in between.
    """

    @intrinsic
    def read(typing: object, number: types.Type) -> object:
        def generate(context: Any, builder: ir.IRBuilder, signature: object, args: Any) -> object:
            word = ir.IntType(source.bitwidth)
            bits = builder.bitcast(args[0], word)
            if moved_up:
                bits = builder.shl(bits, ir.Constant(word, moved_up))
            return builder.bitcast(bits, context.get_value_type(target))

        return target(source), generate

    return read
