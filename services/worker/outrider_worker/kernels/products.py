"""A few vectors times one matrix: the product that linear layers and attention are made of.

Written down as vector instructions instead of loops, so that the sums stay in registers (twice as
fast as what the compiler makes of the loops). Every sum is one chain of fused multiply-adds in row
order, whichever and however many vectors are computed with it.

Knows: how to emit the product. Does not know: weights, keys, values, rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider_worker.kernels.compiled import shared
from outrider_worker.kernels.elementwise import LANES, Floats

_Value = Any  # llvmlite's values and numba's contexts have no types to name
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT, _INT32 = ir.IntType(64), ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
_FLOAT_BYTES = 4

_WIDE = 4
"""Vectors of columns at a time."""

_AHEAD_ROWS = 128
"""How far ahead rows are asked from memory: several vectors keep the core busy so long that it
would otherwise ask for the next rows too late (a fifth off products of 4 to 32 vectors)."""

_MANY_REGISTERS = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
"""Whether the sums of four vectors fit the registers."""


class _Matrix:
    """A two-dimensional array of floats as generated code sees it; its rows are contiguous."""

    def __init__(
        self, context: _Value, builder: ir.IRBuilder, kind: types.Type, value: _Value
    ) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.rows, _ = cgutils.unpack_tuple(builder, array.shape, 2)
        row_bytes, _ = cgutils.unpack_tuple(builder, array.strides, 2)
        self._stride = builder.sdiv(row_bytes, _INT(_FLOAT_BYTES))
        self._builder, self._data = builder, array.data

    def at(self, row: _Value, column: _Value) -> _Value:
        """The address of one element."""
        builder = self._builder
        return builder.gep(self._data, [builder.add(builder.mul(row, self._stride), column)])

    def vectors(self, row: _Value, column: _Value, wide: int) -> list[_Value]:
        """The addresses of so many vectors of one row."""
        builder = self._builder
        starts = [builder.add(column, _INT(LANES * part)) for part in range(wide)]
        return [builder.bitcast(self.at(row, at), _VECTOR.as_pointer()) for at in starts]


class _Emitter:
    """Emits out[first : first + rows, column : column + wide · LANES] += a[first …] · b."""

    def __init__(self, builder: ir.IRBuilder, rows: int, wide: int) -> None:
        self._builder, self._rows, self._wide = builder, rows, wide

    def emit(self, a: _Matrix, b: _Matrix, out: _Matrix, first: _Value, column: _Value) -> None:
        builder = self._builder
        lines = [builder.add(first, _INT(row)) for row in range(self._rows)]
        places = [place for line in lines for place in out.vectors(line, column, self._wide)]
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in places]
        self._copy(places, sums)
        with cgutils.for_range(builder, b.rows) as loop:
            row = [builder.load(at, align=4) for at in b.vectors(loop.index, column, self._wide)]
            if self._rows > 1:
                self._ask_ahead(b, loop.index, column)
            factors = [self._spread(builder.load(a.at(line, loop.index))) for line in lines]
            for index, total in enumerate(sums):
                line, part = divmod(index, self._wide)
                self._multiply_add(factors[line], row[part], total)
        self._copy(sums, places)

    def _copy(self, sources: list[_Value], targets: list[_Value]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._builder.store(self._builder.load(source, align=4), target, align=4)

    def _multiply_add(self, factor: _Value, part: _Value, total: _Value) -> None:
        builder = self._builder
        shape = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fused = cgutils.get_or_insert_function(builder.module, shape, f"llvm.fma.v{LANES}f32")
        builder.store(builder.call(fused, [factor, part, builder.load(total)]), total)

    def _ask_ahead(self, b: _Matrix, row: _Value, column: _Value) -> None:
        """Bring a later row to the second cache; an address beyond the matrix does no harm."""
        builder = self._builder
        shape = ir.FunctionType(ir.VoidType(), [_BYTES, _INT32, _INT32, _INT32])
        prefetch = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        read, second_cache, data = _INT32(0), _INT32(2), _INT32(1)
        for place in b.vectors(builder.add(row, _INT(_AHEAD_ROWS)), column, self._wide):
            builder.call(prefetch, [builder.bitcast(place, _BYTES), read, second_cache, data])

    def _spread(self, value: _Value) -> _Value:
        """[value] · LANES"""
        builder = self._builder
        empty = ir.Constant(_VECTOR, ir.Undefined)
        lanes = ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
        return builder.shuffle_vector(builder.insert_element(empty, value, _INT32(0)), empty, lanes)


def _product(rows: int, wide: int) -> Callable[[Floats, Floats, Floats, int, int], None]:
    """The product for so many vectors and so many LANES of columns at a time."""

    @intrinsic
    def multiply_add(
        typing: _Value, a: _Value, b: _Value, out: _Value, first: _Value, column: _Value
    ) -> _Value:
        def generate(context: _Value, builder: ir.IRBuilder, sign: _Value, args: _Value) -> _Value:
            matrices = [
                _Matrix(context, builder, kind, value)
                for kind, value in zip(sign.args[:3], args[:3], strict=True)
            ]
            _Emitter(builder, rows, wide).emit(*matrices, *args[3:])
            return context.get_dummy_value()

        return types.void(a, b, out, types.int64, types.int64), generate

    found: Callable[[Floats, Floats, Floats, int, int], None] = multiply_add
    return found


_one, _two, _three, _four = (_product(rows, _WIDE) for rows in (1, 2, 3, 4))
_narrow = _product(1, 1)


@shared
def add_product(a: Floats, b: Floats, out: Floats) -> None:
    """out [n, w] += a [n, d] · b [d, w]; w is a multiple of LANES."""
    vectors, width = out.shape
    wide = width // (_WIDE * LANES) * (_WIDE * LANES)
    for column in range(0, wide, _WIDE * LANES):
        first = 0
        if _MANY_REGISTERS:
            while vectors - first >= 4:
                _four(a, b, out, first, column)
                first += 4
            if vectors - first == 3:
                _three(a, b, out, first, column)
                first += 3
            elif vectors - first == 2:
                _two(a, b, out, first, column)
                first += 2
        while first < vectors:
            _one(a, b, out, first, column)
            first += 1
    for column in range(wide, width, LANES):
        for first in range(vectors):
            _narrow(a, b, out, first, column)
