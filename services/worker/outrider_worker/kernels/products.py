"""A few vectors times one page: the product both halves of attention are made of.

Written down as vector instructions instead of loops, so that the sums stay in registers (twice as
fast as what the compiler makes of the loops) and every vector's sum is one chain of fused
multiply-adds in row order, with however many others it is computed.

Knows: how to emit the product. Does not know: keys, values, rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider_worker.kernels.compiled import inlined
from outrider_worker.kernels.elementwise import LANES, Floats

_Value = Any  # llvmlite's values and numba's contexts have no types to name
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT = ir.IntType(64)
_FLOAT_BYTES = 4


class _Matrix:
    """A two-dimensional array of floats as generated code sees it; its rows are contiguous."""

    def __init__(self, context: _Value, builder: ir.IRBuilder, kind: types.Type, value: _Value):
        array = context.make_array(kind)(context, builder, value)
        self._builder = builder
        self._data = array.data
        self.rows, _ = cgutils.unpack_tuple(builder, array.shape, 2)
        row_bytes, _ = cgutils.unpack_tuple(builder, array.strides, 2)
        self._stride = builder.sdiv(row_bytes, _INT(_FLOAT_BYTES))

    def at(self, row: _Value, column: _Value) -> _Value:
        """The address of one element."""
        builder = self._builder
        return builder.gep(self._data, [builder.add(builder.mul(row, self._stride), column)])


def _emit(builder: ir.IRBuilder, a: _Matrix, b: _Matrix, out: _Matrix, rows: int, wide: int,
          first: _Value, column: _Value) -> None:
    """out[first : first + rows, column : column + wide · LANES] += a[first : …] · b."""
    shape = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fused = cgutils.get_or_insert_function(builder.module, shape, f"llvm.fma.v{LANES}f32")

    def vector(address: _Value) -> _Value:
        return builder.bitcast(address, _VECTOR.as_pointer())

    def columns(matrix: _Matrix, row: _Value) -> list[_Value]:
        starts = [builder.add(column, _INT(LANES * part)) for part in range(wide)]
        return [vector(matrix.at(row, start)) for start in starts]

    lines = [builder.add(first, _INT(row)) for row in range(rows)]
    places = [columns(out, line) for line in lines]
    sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(wide)] for _ in lines]
    for place, total in zip(sum(places, []), sum(sums, []), strict=True):
        builder.store(builder.load(place, align=4), total)
    with cgutils.for_range(builder, b.rows) as loop:
        page = [builder.load(place, align=4) for place in columns(b, loop.index)]
        for line, totals in zip(lines, sums, strict=True):
            factor = _splat(builder, builder.load(a.at(line, loop.index)))
            for total, part in zip(totals, page, strict=True):
                builder.store(builder.call(fused, [factor, part, builder.load(total)]), total)
    for place, total in zip(sum(places, []), sum(sums, []), strict=True):
        builder.store(builder.load(total), place, align=4)


def _splat(builder: ir.IRBuilder, value: _Value) -> _Value:
    """[value] · LANES"""
    empty = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(empty, value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _product(rows: int, wide: int) -> Callable[..., None]:
    """The product for so many vectors and so many LANES of columns at a time."""

    @intrinsic
    def multiply_add(typing: _Value, a: _Value, b: _Value, out: _Value, first: _Value,
                     column: _Value) -> _Value:
        signature = types.void(a, b, out, types.int64, types.int64)

        def generate(context: _Value, builder: ir.IRBuilder, sign: _Value, args: _Value) -> _Value:
            matrices = [
                _Matrix(context, builder, kind, value)
                for kind, value in zip(sign.args[:3], args[:3], strict=True)
            ]
            _emit(builder, *matrices, rows, wide, *args[3:])
            return context.get_dummy_value()

        return signature, generate

    return multiply_add


_BY_VECTORS = tuple(_product(rows, 4) for rows in (1, 2, 3, 4))
_one, _two, _three, _four = _BY_VECTORS
_narrow = _product(1, 1)


@inlined
def add_product(a: Floats, b: Floats, out: Floats) -> None:
    """out [n, w] += a [n, d] · b [d, w]; w is a multiple of LANES."""
    vectors, width = out.shape
    wide = width // (4 * LANES) * (4 * LANES)
    for column in range(0, wide, 4 * LANES):
        for first in range(0, vectors // 4 * 4, 4):
            _four(a, b, out, first, column)
        first, left = vectors // 4 * 4, vectors % 4
        if left == 3:
            _three(a, b, out, first, column)
        elif left == 2:
            _two(a, b, out, first, column)
        elif left == 1:
            _one(a, b, out, first, column)
    for column in range(wide, width, LANES):
        for first in range(vectors):
            _narrow(a, b, out, first, column)
