"""What every candidate of a plan brings and costs: expectations over the pool, as arrays.

Knows which (d, V) are worth looking at and how G, T, E and D make a table of them. Does not choose.
Several ladder steps are tabulated at once: the arrays are small and the calls are what costs.
Axes: S ladder steps, K draft lengths, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.pools import CONVOLVED_UP_TO, DensePool, Pool
from outrider_planner.core.types import FloatArray, IntArray

T = TypeVar("T", bound=np.generic)

STEPS_AT_ONCE = 8
REQUESTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class LatencyBound:
    """At most ``token_s`` seconds between two tokens of a request, in every class.

    ``gains``: the part of each class in G; ``shares`` (C,): its part of the requests.
    """

    token_s: float
    gains: tuple[GainModel, ...]
    shares: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """All candidates of some steps. ``requests`` (S,); ``verify`` (S, C), ascending, the last one
    repeated; ``gain`` and ``pass_s`` (S, K + 1, C), which are 0 and infinite where V > n·d;
    ``prepare_s`` (S, K + 1).

    ``slowest`` (S, K + 1, C): accepted drafts per request of the class that has fewest, for a
    bound on latency.
    """

    requests: IntArray
    verify: IntArray
    gain: FloatArray
    pass_s: FloatArray
    prepare_s: FloatArray
    slowest: FloatArray | None = None

    def rates(self) -> FloatArray:
        """Tokens per second of every (d, V), (S, K + 1, C); 0 for drafting what is not verified.

        Where drafting costs nothing, that would tie with off, and hide that nothing is learned.
        """
        tokens = self.requests[:, None, None] + self.gain
        result: FloatArray = tokens / (self.pass_s + self.prepare_s[:, :, None])
        result[:, 1:, 0] = 0.0
        return result

    def token_s(self, prepare_s: FloatArray) -> FloatArray:
        """Seconds between two tokens in the slowest class, (S, K + 1, C), preparing so long."""
        assert self.slowest is not None
        result: FloatArray = (self.pass_s + prepare_s) / (1.0 + self.slowest)
        return result

    def taken(self, column: IntArray) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """V, G and T + E at the chosen columns, (S, K + 1) each, and what every d takes next."""
        verify = np.take_along_axis(self.verify, column, axis=1)
        return verify, at_column(self.gain, column), at_column(self.pass_s, column), self.prepare_s


def chunks(cost: CostModel) -> list[slice]:
    """Neighbouring steps that are searched together; pools of few and of many requests apart.

    Where every V is a candidate a large n has many: it is searched with few others, whose rows
    would be filled up to as many.
    """
    starts, ladder = [0], cost.ladder
    for place, n in enumerate(ladder[1:], start=1):
        steps = place - starts[-1] + 1
        too_wide = not cost.edges and steps * n > REQUESTS_AT_ONCE
        many = ladder[starts[-1]] <= CONVOLVED_UP_TO < n
        if steps > STEPS_AT_ONCE or too_wide or many:
            starts.append(place)
    return [slice(start, end) for start, end in pairwise([*starts, len(ladder)])]


def tabulate(
    drafter: str,
    gain: GainModel,
    cost: CostModel,
    steps: slice,
    latency: LatencyBound | None = None,
) -> Stage:
    """Gain and seconds of every candidate at these steps, as expectations over the pool.

    With sparse drafts the n of the steps are all on one side of ``CONVOLVED_UP_TO``.
    """
    n, positions = np.array(cost.ladder[steps]), gain.positions
    pool, row_s = gain.pool(n), cost.target_s + cost.feed_s[drafter]
    verify = candidates(cost.ladder[steps], positions, cost, row_s)
    valid = verify[:, None, :] <= (n[:, None] * np.arange(1, positions + 1))[:, :, None]
    reached, expected_s = expected_pass_s(pool, row_s, n, verify)
    pass_s = np.full((n.size, positions + 1, verify.shape[1]), np.inf)
    np.copyto(pass_s[:, 1:], expected_s, where=valid)
    accepted = np.zeros(pass_s.shape)
    wanted = verify.astype(np.float64)
    np.multiply(gain.accepted(n, pool, wanted, reached), valid, out=accepted[:, 1:])
    # Without drafts the drafter is not fed: what it costs when off is the worker's idle grade.
    pass_s[:, 0, 0] = cost.target_s[n]
    prepare_s = cost.draft_s[drafter][steps, : positions + 1] + cost.every_round_s[steps, None]
    slowest = None
    if latency is not None:
        slowest = np.zeros(pass_s.shape)
        slowest[:, 1:] = _slowest(latency, n, pool, wanted, reached)
    return Stage(n, verify, accepted, pass_s, prepare_s, slowest)


def _slowest(
    latency: LatencyBound, requests: IntArray, pool: Pool, wanted: FloatArray, reached: FloatArray
) -> FloatArray:
    """Accepted drafts per request of the class that has fewest, (S, K, C)."""
    n = requests[:, None, None]
    each = [
        part.accepted(requests, pool, wanted, reached) / (n * share)
        for part, share in zip(latency.gains, latency.shares, strict=True)
    ]
    result: FloatArray = np.maximum(np.min(each, axis=0), 0.0)
    return result


def expected_pass_s(
    pool: Pool, row_s: FloatArray, requests: int | IntArray, verify: IntArray
) -> tuple[FloatArray, FloatArray]:
    """E[min(V, m)] over the pool m, and E of the time of n + min(V, m) rows, (K, C) each, with S
    before for several n; ``row_s[b]`` is for b rows. A dense pool always holds V drafts.

    ``verify`` ascends from 0 and holds every V behind which the time changes: then the time is
    the sum over candidates below V of P(m > candidate) times the change behind it.
    """
    wanted = verify[..., None, :].astype(np.float64)
    rows = np.asarray(requests)[..., None] + verify
    at_s = row_s[rows]
    if isinstance(pool, DensePool):
        reached = pool.expected_min(wanted)
        return reached, np.broadcast_to(at_s[..., None, :], reached.shape)
    change = row_s[np.minimum(rows + 1, row_s.size - 1)] - at_s
    change[..., :-1] *= verify[..., 1:] > verify[..., :-1]
    # One question to the pool for both.
    found = pool.expected_min(np.concatenate([wanted, wanted + 1.0], axis=-1))
    reached, beyond = found[..., : verify.shape[-1]], found[..., verify.shape[-1] :]
    rise = (beyond - reached) * change[..., None, :]
    expected_s = np.empty(rise.shape)
    expected_s[..., 0] = at_s[..., None, 0]
    np.cumsum(rise[..., :-1], axis=-1, out=expected_s[..., 1:])
    expected_s[..., 1:] += at_s[..., None, :1]
    return reached, expected_s


def candidates(
    requests: tuple[int, ...], positions: int, cost: CostModel, row_s: FloatArray
) -> IntArray:
    """Ascending V, (S, C): every count, or where rows are padded what fills a bucket, and n·d.

    Rows shorter than the longest repeat their last candidate.
    """
    edges: tuple[int, ...] = ()
    if cost.edges:
        edges = (*cost.edges, *(np.flatnonzero(row_s[2:] != row_s[1:-1]) + 1).tolist())
    return _candidates(requests, positions, cost.max_rows, edges)


@lru_cache(maxsize=1024)
def _candidates(
    requests: tuple[int, ...], positions: int, max_rows: int, edges: tuple[int, ...]
) -> IntArray:
    found = [_of_one(n, positions, max_rows, edges) for n in requests]
    width = max(verify.size for verify in found)
    return np.stack([np.pad(verify, (0, width - verify.size), mode="edge") for verify in found])


def _of_one(n: int, positions: int, max_rows: int, edges: tuple[int, ...]) -> IntArray:
    most = max(min(n * positions, max_rows - n), 0)
    if not edges:
        return np.arange(most + 1)
    full = n * np.arange(positions + 1)
    verify = np.concatenate([np.array(edges) - n, full, [most]])
    return np.unique(verify[(verify >= 0) & (verify <= most)])


def at_column(values: NDArray[T], column: IntArray) -> NDArray[T]:
    """The value of every (step, carried d) at its column.

    Flat positions: one take is several times faster than indexing by three arrays.
    """
    first = np.arange(0, values.size, values.shape[2]).reshape(column.shape)
    return values.take(first + column)
