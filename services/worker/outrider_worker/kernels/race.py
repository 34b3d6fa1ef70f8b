"""Drawing a token among a whole vocabulary: noise, its logarithms and the best of all in one pass.

Torch takes a hundred operations over the vocabulary for it, 3 ms a row of 50,000 tokens; noise that
is made where it is used, and looked at closely only where it could win, takes a tenth of that.

Knows: the generator (philox) and the race (sampling.draw), of which this is the same in other
words. Does not know: tensors, what was done to the logits before.
"""

from __future__ import annotations

from math import log, log1p
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from outrider_worker.kernels.bits import reinterpreted
from outrider_worker.kernels.compiled import callback, inlined, shared
from outrider_worker.kernels.elementwise import Floats
from outrider_worker.kernels.memory import floats, ints, records
from outrider_worker.kernels.team import thread_count, thread_index

BLOCK = 256
"""Tokens whose noise is made at once; four share a counter."""

_ADDRESSES = ("logits", "temperature", "seed", "choice", "index", "tokens", "values")

JOB = np.dtype([(name, np.int64) for name in (*_ADDRESSES, "rows", "vocabulary")])
"""What a job looks like in memory: addresses of arrays and their sizes.

logits [rows, vocabulary] and temperature [rows] float32; seed, choice and index [rows] int64.
Written: tokens [threads, rows] int64, the best of each thread's part of the vocabulary, and what
it came to, values [threads, rows] float64, as int64 bits.
"""

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_K0, _K1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ZERO = np.uint64(0)

_TO_UNIT = 2.0**-32
_LN_2 = log(2.0)
_bits = reinterpreted(types.float64, types.int64)
_SLACK = 1e-9
"""More than rounding can hide of a bound that is never passed."""

_jobs = records(JOB)


Place = tuple[np.uint64, np.uint64, np.uint64]
"""Where a row's noise lies: seed, choice, index."""


@inlined
def _words(counter: np.uint64, place: Place) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Noise of four tokens; see philox.philox. The last word of the counter is Purpose.SAMPLE."""
    seed, choice, index = place
    c0, c1, c2, c3 = counter, index & _MASK, choice & _MASK, _ZERO
    k0, k1 = seed & _MASK, seed >> _HALF
    for _ in range(10):
        a, b = c0 * _M0, c2 * _M1
        c0, c2 = (b >> _HALF) ^ c1 ^ k0, (a >> _HALF) ^ c3 ^ k1
        c1, c3 = b & _MASK, a & _MASK
        k0, k1 = (k0 + _K0) & _MASK, (k1 + _K1) & _MASK
    return c0, c1, c2, c3


@inlined
def noise_of(token: int, place: Place) -> np.uint64:
    """32 bits."""
    return _words(np.uint64(token >> 2), place)[token & 3]


@inlined
def value_of(score: float, bits: np.uint64) -> float:
    """What a token comes to in the race; see sampling.draw.race."""
    u = (np.float64(bits) + 0.5) * _TO_UNIT
    return score - log(-log1p(-u))


@inlined
def _most(bits: np.uint64) -> float:
    """What −log E is below, for the noise of 32 bits: E ≥ u ≥ 2^⌊log₂(bits + ½)⌋ · 2⁻³²."""
    exponent = (_bits(np.float64(bits) + 0.5) >> 52) - 1023
    return (32 - exponent) * _LN_2


@shared
def race_row(
    logits: Floats,
    start: int,
    stop: int,
    temperature: np.float32,
    place: Place,
    words: NDArray[np.uint64],
) -> tuple[int, float]:
    """Winner among tokens start … stop − 1 of one row, at a tie the lowest, and its value.

    words: scratch [4, BLOCK / 4].
    """
    best, winner, divisor = -np.inf, start, np.float64(temperature)
    for block in range(start, stop, BLOCK):
        for lane in range(BLOCK // 4):
            counter = np.uint64((block >> 2) + lane)
            words[0, lane], words[1, lane], words[2, lane], words[3, lane] = _words(counter, place)
        for token in range(block, min(block + BLOCK, stop)):
            score = np.float64(logits[token]) / divisor
            bits = words[token & 3, (token - block) >> 2]
            if score + _most(bits) + _SLACK > best:
                value = value_of(score, bits)
                if value > best:
                    best, winner = value, token
    return winner, best


@shared
def race_share(job: Any, thread: int, threads: int) -> None:
    """One thread's part of every row."""
    logits = floats(job.logits, (job.rows, job.vocabulary))
    temperature = floats(job.temperature, (job.rows,))
    seed, choice = ints(job.seed, (job.rows,)), ints(job.choice, (job.rows,))
    index = ints(job.index, (job.rows,))
    tokens = ints(job.tokens, (threads, job.rows))
    values = ints(job.values, (threads, job.rows)).view(np.float64)
    words = np.empty((4, BLOCK // 4), np.uint64)
    blocks = -(-job.vocabulary // BLOCK)
    start = blocks * thread // threads * BLOCK
    stop = min(blocks * (thread + 1) // threads * BLOCK, job.vocabulary)
    for row in range(job.rows):
        place = (np.uint64(seed[row]), np.uint64(choice[row]), np.uint64(index[row]))
        tokens[thread, row], values[thread, row] = race_row(
            logits[row], start, stop, temperature[row], place, words
        )


@callback("void(int64)")
def _race(address: int) -> None:
    race_share(_jobs(address, 1)[0], thread_index(), thread_count())


RACE: int = _race.address
"""Compiled work for a team (kernels.team) that writes a job's `tokens` and `values`."""
