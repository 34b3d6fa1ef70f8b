"""How many drafts really exist in a round: distributions of the pool and expectations over them.

Knows E[min(x, m)] for m, the sum over n requests of draft lengths cut at d. Does not know what a
draft is worth nor what a row costs. Axes: S values of n if asked for several at once, then
d = 1…K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider_planner.core.types import FloatArray, IntArray

CONVOLVED_UP_TO = 24
_LARGEST_ARRAY_BYTES = 8 << 20
ComplexArray = NDArray[np.complex128]


class Pool(Protocol):
    """The pool of n requests, for every draft length; or of several n."""

    def expected_min(self, x: FloatArray) -> FloatArray:
        """E[min(x, m_d)] in drafts; x ≥ 0 broadcasts against (K, …) or (S, K, …)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DensePool:
    """Every request has all d drafts: m = n·d."""

    size: FloatArray

    def expected_min(self, x: FloatArray) -> FloatArray:
        """min(x, n·d)."""
        return np.minimum(x, _columns(self.size, x))


@dataclass(frozen=True, slots=True, eq=False)
class TabulatedPool:
    """E[min(v, m)] at v = 0…n·K, last axis; between whole v it is linear, as m is whole."""

    table: FloatArray

    def expected_min(self, x: FloatArray) -> FloatArray:
        """Exact for any real x."""
        *lead, width = self.table.shape
        part = np.minimum(x, float(width - 1))
        below = np.minimum(part.astype(np.int64), width - 2)
        part -= below
        # Flat positions: one take is several times faster than indexing by two arrays.
        rows = np.arange(0, self.table.size, width).reshape(*lead, *([1] * (x.ndim - len(lead))))
        place = below + rows
        low = self.table.take(place)
        place += 1
        result: FloatArray = self.table.take(place)
        result -= low
        result *= part
        result += low
        return result


@dataclass(frozen=True, slots=True, eq=False)
class NormalPool:
    """Many requests: m is close to normal. All fields (K,) or (S, K).

    Zero at 0, the mean at n·d and concave between, as the exact function is: the normal's small
    masses below 0 and above n·d are taken out by stretching it. Kept as what a lookup needs: x is
    cut at ``size``, ``pitch``·x + ``place`` is the place in the table of the standard normal, and
    ``scale`` times what stands there, with ``offset``, is the expectation.
    """

    size: FloatArray
    pitch: FloatArray
    place: FloatArray
    scale: FloatArray
    offset: FloatArray

    @classmethod
    def of(cls, mean: FloatArray, deviation: FloatArray, size: FloatArray) -> NormalPool:
        """From the pool's mean, deviation and bound n·d, of any common shape."""
        at_zero = mean + deviation * np.minimum(_looked_up(-mean / deviation), -mean / deviation)
        at_size = mean + deviation * _looked_up((size - mean) / deviation)
        stretch = mean / np.maximum(at_size - at_zero, 1e-12)
        pitch = _STEPS_PER_UNIT / deviation
        place = _STEPS / 2.0 - mean * pitch
        return cls(size, pitch, place, stretch * deviation, (mean - at_zero) * stretch)

    def expected_min(self, x: FloatArray) -> FloatArray:
        """Close to E[min(x, m)], never above x."""
        within = np.minimum(x, _columns(self.size, x))
        result = within * _columns(self.pitch, x)
        result += _columns(self.place, x)
        result = _at_places(result)
        result *= _columns(self.scale, x)
        result += _columns(self.offset, x)
        return np.minimum(result, within, out=result)


def dense_pool(requests: int | IntArray, positions: int) -> DensePool:
    """The pool of a drafter that always proposes what is asked."""
    return DensePool(np.asarray(requests)[..., None] * np.arange(1.0, positions + 1))


def sparse_pool(requests: int | IntArray, length_survival: FloatArray) -> Pool:
    """The pool of n independent draws from P(len ≥ j), (K,).

    Convolved, or normal above 24, where it is at most 7 % of the mean off, and less the larger n.
    Several n must be on one side of that.
    """
    n = np.asarray(requests)
    if n.max() <= CONVOLVED_UP_TO:
        return TabulatedPool(_convolved(n, _length_masses(length_survival)))
    lengths = np.arange(1.0, length_survival.size + 1)
    mean = np.cumsum(length_survival)
    variance = np.cumsum((2 * lengths - 1) * length_survival) - mean**2
    n = n[..., None]
    return NormalPool.of(n * mean, np.sqrt(np.maximum(n * variance, 1e-12)), n * lengths)


def _length_masses(length_survival: FloatArray) -> FloatArray:
    """P(min(len, d) = l), (K, K + 1)."""
    positions = length_survival.size
    survival = np.concatenate([[1.0], length_survival, [0.0]])
    masses = np.tril(np.broadcast_to(survival[:-1] - survival[1:], (positions, positions + 1)), 1)
    d = np.arange(positions)
    masses[d, d + 1] = length_survival
    return masses


def _convolved(requests: IntArray, masses: FloatArray) -> FloatArray:
    """E[min(v, m)] for v = 0…n·K, (…, K, n·K + 1), m the sum of n draws from each row of masses.

    For several n all are as wide as the largest.
    """
    size = int(requests.max()) * (masses.shape[1] - 1) + 1
    length = _fast_length(size)
    spectrum = np.fft.rfft(masses, length, axis=1)
    powers = np.stack([_power(spectrum, int(n)) for n in requests.reshape(-1)])
    pool = np.maximum(np.fft.irfft(powers, length, axis=2)[:, :, :size], 0.0)
    at_least = pool[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    at_least[:, :, 0] = 0.0
    np.minimum(at_least, 1.0, out=at_least)
    return at_least.cumsum(axis=2).reshape(*requests.shape, *at_least.shape[1:])


def _power(values: ComplexArray, exponent: int) -> ComplexArray:
    """By repeated squaring; numpy's complex power is many times slower."""
    result = values if exponent % 2 else np.ones_like(values)
    while exponent := exponent // 2:
        values = values * values
        if exponent % 2:
            result = result * values
    return result


def _fast_length(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()


def _columns(values: FloatArray, x: FloatArray) -> FloatArray:
    """Values by (S and) K, shaped so that they broadcast along the first axes of x."""
    return values.reshape(*values.shape, *([1] * (x.ndim - values.ndim)))


def _standard_table() -> FloatArray:
    """E[min(z, Z)] = z·(1 − Φ(z)) − φ(z) of a standard normal Z, on the grid."""
    grid = np.linspace(_FIRST_Z, -_FIRST_Z, _STEPS + 1)
    above = np.array([0.5 * math.erfc(z / math.sqrt(2.0)) for z in grid])
    table: FloatArray = grid * above - np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi)
    return table


def _keep_freed_memory() -> None:
    """Frees one block larger than any array here.

    Blocks above a threshold are mapped by glibc for each use, and their pages faulted in anew,
    which takes a third of a plan's time; freeing a larger one raises the threshold for good.
    """
    np.empty(_LARGEST_ARRAY_BYTES, dtype=np.uint8)


_keep_freed_memory()
_FIRST_Z, _STEPS = -6.0, 2400
_STEPS_PER_UNIT = _STEPS / (-2.0 * _FIRST_Z)
_TABLE = _standard_table()
_SLOPES = np.diff(_TABLE)


def _looked_up(z: FloatArray) -> FloatArray:
    """E[min(z, Z)]; below the table its least value, which is above z."""
    return _at_places(z * _STEPS_PER_UNIT + _STEPS / 2.0)


def _at_places(place: FloatArray) -> FloatArray:
    """Linear in the table; overwrites the places."""
    np.maximum(place, 0.0, out=place)
    np.minimum(place, _STEPS - 1e-9, out=place)
    below = place.astype(np.int64)
    place -= below
    place *= _SLOPES.take(below)
    place += _TABLE.take(below)
    return place
