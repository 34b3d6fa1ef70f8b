"""Drawing a token among those that min-p, top-k and top-p keep: a row's best, in order, in one go.

A histogram over the logits tells where the best begin, so that only those are sorted. Noise is made
for the survivors alone.

Knows: the filters (sampling.filters), the order of tokens (sampling.rank) and the race
(sampling.draw), of which this is the same in other words. Does not know: tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from outrider_worker.kernels.bits import reinterpreted
from outrider_worker.kernels.compiled import callback, inlined, shared
from outrider_worker.kernels.elementwise import LANES, Floats
from outrider_worker.kernels.exponential import exp_64
from outrider_worker.kernels.memory import floats, ints, records
from outrider_worker.kernels.race import Place, noise_of, value_of
from outrider_worker.kernels.team import thread_count, thread_index

_CANDIDATES, _MORE = 512, 4
"""How many tokens are sorted at first, and how many times as many where those do not settle it."""

_ADDRESSES = ("logits", "temperature", "top_p", "min_p", "top_k", "seed", "choice", "index")

JOB = np.dtype([(name, np.int64) for name in (*_ADDRESSES, "keys", "tokens", "rows", "vocabulary")])
"""What a job looks like in memory: addresses of arrays and their sizes.

logits [rows, vocabulary], temperature, top_p and min_p [rows] float32; top_k, seed, choice and
index [rows] int64. keys: scratch [threads, vocabulary] int64. Written: tokens [rows] int64.
"""

_BINS, _BIN_SHIFT = 4096, 20
_LOW = 0xFFFFFFFF

Doubles = NDArray[np.float64]
Scale = tuple[float, float, float]
"""A row's temperature, its highest score, and Σ e^(score − highest)."""

_jobs = records(JOB)
_bits = reinterpreted(types.float32, types.int32)
_number = reinterpreted(types.int32, types.float32)


@inlined
def _ordered(logit: np.float32) -> np.int64:
    """Orders as the logit does (see sampling.rank); one zero of two."""
    bits = np.int64(_bits(logit + np.float32(0)))
    return bits ^ ((bits >> 63) & 0x7FFFFFFF)


@inlined
def _logit(key: np.int64) -> np.float32:
    """Of a key."""
    ordered = key >> 32
    return _number(np.int32(ordered ^ ((ordered >> 63) & 0x7FFFFFFF)))


@inlined
def _bin(logit: np.float32) -> np.int64:
    return (_ordered(logit) + (1 << 31)) >> _BIN_SHIFT


@shared
def _total(logits: Floats, divisor: float, highest: float, weights: Doubles) -> float:
    """Σ e^(score − highest). weights: scratch [vocabulary]."""
    for token in range(len(logits)):
        weights[token] = exp_64(np.float64(logits[token]) / divisor - highest)
    partial = np.zeros(LANES)
    whole = len(logits) // LANES * LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            partial[lane] += weights[start + lane]
    return partial.sum() + weights[whole:].sum()


@shared
def _best(logits: Floats, histogram: NDArray[np.int64], least: int, keys: NDArray[np.int64]) -> int:
    """How many of the best there are in `keys`, in rising order: `least`, and their bin's others.

    histogram: of `_bin`.
    """
    found, lowest = 0, _BINS
    while found < least:
        lowest -= 1
        found += histogram[lowest]
    count = 0
    for token in range(len(logits)):
        if _bin(logits[token]) >= lowest:
            keys[count] = (_ordered(logits[token]) << 32) + (_LOW - token)
            count += 1
    keys[:count].sort()
    return count


@inlined
def _share(key: np.int64, scale: Scale) -> float:
    """Of the whole law before the filters."""
    divisor, highest, total = scale
    return exp_64(np.float64(_logit(key)) / divisor - highest) / total


@inlined
def _kept(
    keys: NDArray[np.int64],
    scale: Scale,
    cuts: tuple[int, float, float],
    whole: bool,
) -> int:
    """How many of the best the filters keep; −1 where that takes more candidates than there are.

    keys: in rising order. cuts: top-k, top-p, min-p. whole: keys are all tokens.
    """
    top_k, top_p, min_p = cuts
    count = len(keys)
    limit = min(top_k, count) if top_k > 0 else count
    within, mass, shares = 0, 0.0, np.empty(limit)
    least = min_p * _share(keys[count - 1], scale)
    while within < limit:
        shares[within] = _share(keys[count - 1 - within], scale)
        if shares[within] < least:
            break
        mass += shares[within]
        within += 1
    cut = top_k > 0 or min_p > 0
    if within == count and not whole and (cut or top_p >= 1) and top_k != count:
        return -1
    if top_p >= 1:
        return within
    most = top_p * (mass if cut else 1.0)
    kept, before = 0, 0.0
    while kept < within and (kept == 0 or before < most):
        before += shares[kept]
        kept += 1
    return -1 if kept == count and not whole and not cut else kept


@shared
def draw_row(
    logits: Floats,
    temperature: np.float32,
    cuts: tuple[int, float, float],
    place: Place,
    keys: NDArray[np.int64],
) -> int:
    """A row's token. keys: scratch [vocabulary]."""
    divisor, vocabulary = np.float64(temperature), len(logits)
    histogram = np.zeros(_BINS, np.int64)
    top = logits[0]
    for token in range(vocabulary):
        top = max(top, logits[token])
        histogram[_bin(logits[token])] += 1
    highest = np.float64(top) / divisor
    scale = (divisor, highest, _total(logits, divisor, highest, keys.view(np.float64)))
    least, count, kept = (cuts[0] if cuts[0] > 0 else _CANDIDATES), 0, -1
    while kept < 0:
        count = _best(logits, histogram, min(least, vocabulary), keys)
        kept = _kept(keys[:count], scale, cuts, count == vocabulary)
        least *= _MORE
    best, winner = -np.inf, _LOW - (keys[count - 1] & _LOW)
    for rank in range(kept):
        key = keys[count - 1 - rank]
        token = _LOW - (key & _LOW)
        value = value_of(np.float64(_logit(key)) / divisor, noise_of(token, place))
        if value > best:
            best, winner = value, token
    return winner


@shared
def draw_share(job: Any, thread: int, threads: int) -> None:
    """The rows of one thread."""
    logits = floats(job.logits, (job.rows, job.vocabulary))
    temperature = floats(job.temperature, (job.rows,))
    top_p, min_p = floats(job.top_p, (job.rows,)), floats(job.min_p, (job.rows,))
    top_k, seed = ints(job.top_k, (job.rows,)), ints(job.seed, (job.rows,))
    choice, index = ints(job.choice, (job.rows,)), ints(job.index, (job.rows,))
    keys = ints(job.keys, (threads, job.vocabulary))
    tokens = ints(job.tokens, (job.rows,))
    for row in range(thread, job.rows, threads):
        cuts = (top_k[row], np.float64(top_p[row]), np.float64(min_p[row]))
        place = (np.uint64(seed[row]), np.uint64(choice[row]), np.uint64(index[row]))
        tokens[row] = draw_row(logits[row], temperature[row], cuts, place, keys[thread])


@callback("void(int64)")
def _draw(address: int) -> None:
    draw_share(_jobs(address, 1)[0], thread_index(), thread_count())


DRAW_FILTERED: int = _draw.address
"""Compiled work for a team (kernels.team) that writes a job's `tokens`."""
