"""exp in float32 and float64, made of operations that vector units have.

A library's exp has one code for vectors and another for what is left over, and their bits differ.
This one is the same few multiplications and additions in every lane.

The argument is split into n·ln 2 + r with |r| ≤ ln 2 / 2 (Cody and Waite 1980, chapter 6); e^r is
Taylor's polynomial, whose first missing term is below a tenth of the last place; 2^n is put
together from bits.
"""

from __future__ import annotations

from math import factorial, log

import numpy as np
from numba import types

from outrider_worker.kernels.bits import reinterpreted
from outrider_worker.kernels.compiled import inlined

_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
"""Beyond, the result is no normal number, or none at all."""

_PER_LN_2 = np.float32(1 / np.log(2))
_LN_2_HIGH = np.float32(0.693359375)
"""Few enough bits that its products with any n here are exact."""
_LN_2_LOW = np.float32(np.log(2) - 0.693359375)

_TO_EXPONENT = np.float32(1.5 * 2**23 + 127)
"""Added to n, it leaves n + 127 in the lowest bits: a float's biased exponent."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_T2, _T3, _T4, _T5, _T6, _T7 = (
    np.float32(1 / factorial) for factorial in (2, 6, 24, 120, 720, 5040)
)


_PER_LN_2_64 = 1 / log(2)
_LN_2_HIGH_64 = float.fromhex("0x1.62e42feep-1")
_LN_2_LOW_64 = float.fromhex("0x1.a39ef35793c76p-33")
_TO_EXPONENT_64 = 1.5 * 2.0**52 + 1023
_INVERSES_64 = tuple(1 / factorial(place) for place in range(13, 1, -1))


_with_exponent = reinterpreted(types.float32, types.float32, moved_up=23)
"""2^n from n + _TO_EXPONENT: the lowest nine bits, moved up to where the exponent stands."""

_with_exponent_64 = reinterpreted(types.float64, types.float64, moved_up=52)
"""The same in float64: the lowest twelve bits."""


@inlined
def exp(x: np.float32) -> np.float32:
    """e^x within 1 ulp for −87 ≤ x ≤ 88; 0 below, e^88 above, NaN for NaN."""
    within = _LEAST if x < _LEAST else x
    within = _MOST if within > _MOST else within
    biased = within * _PER_LN_2 + _TO_EXPONENT
    n = biased - _TO_EXPONENT
    r = (within - n * _LN_2_HIGH) - n * _LN_2_LOW
    tail = ((((_T7 * r + _T6) * r + _T5) * r + _T4) * r + _T3) * r + _T2
    result = ((tail * r + _ONE) * r + _ONE) * _with_exponent(biased)
    return _ZERO if x < _LEAST else result


@inlined
def exp_64(x: float) -> float:
    """e^x within 1 ulp for −700 ≤ x ≤ 700; 0 below, e^700 above."""
    within = -700.0 if x < -700.0 else x
    within = 700.0 if within > 700.0 else within
    biased = within * _PER_LN_2_64 + _TO_EXPONENT_64
    n = biased - _TO_EXPONENT_64
    r = (within - n * _LN_2_HIGH_64) - n * _LN_2_LOW_64
    tail = _INVERSES_64[0]
    for inverse in _INVERSES_64[1:]:
        tail = tail * r + inverse
    result = ((tail * r + 1.0) * r + 1.0) * _with_exponent_64(biased)
    return 0.0 if x < -700.0 else result
