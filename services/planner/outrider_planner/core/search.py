"""The two-stage search: from a gain model and costs to d*(n), V*(n, d) and ρ(n).

Stage 2 maximises the long-run rate over (d', V'); its value is ρ(n), the price of a second.
Stage 1 maximises G − ρ·(T + E) over V for every carried d: drafting is already paid for there, so
D does not enter. Both are array expressions over all d and all candidates V of one n.

Knows nothing of where estimates and costs come from. d = 0 and V = 0 are ordinary candidates.
Axes: S ladder steps, K draft lengths, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.pools import DensePool, Pool
from outrider_planner.core.types import FloatArray, IntArray

# A running plan is replaced only by one that is predicted to gain more than this, half of it in
# either stage.
REPLACEMENT_MARGIN = 0.003


@dataclass(frozen=True, slots=True, eq=False)
class DrafterDecision:
    """The outcome for one drafter.

    ``draft_tokens`` (S,), ``verify_tokens`` (S, K + 1): d* and V* by carried d; ``rate`` (S,): ρ.
    Forecasts at V*: ``accepted`` (S, K + 1) drafts, ``pass_s`` (S, K + 1) = T + E;
    ``prepare_s`` (S, K + 1): D + c by the *next* length. So a round that verifies carried d and
    drafts d' takes ``pass_s[s, d] + prepare_s[s, d']``.
    """

    drafter: str
    draft_tokens: IntArray
    verify_tokens: IntArray
    rate: FloatArray
    accepted: FloatArray
    pass_s: FloatArray
    prepare_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """All candidates of one n. ``verify`` (C,); ``gain`` and ``pass_s`` (K + 1, C), which
    are 0 and infinite where V > n·d; ``prepare_s`` (K + 1,)."""

    requests: int
    verify: IntArray
    gain: FloatArray
    pass_s: FloatArray
    prepare_s: FloatArray

    def rates(self) -> FloatArray:
        """Tokens per second of every (d, V), (K + 1, C); 0 for drafting what is never verified.

        Where drafting costs nothing, that would tie with off, and hide that nothing is learned.
        """
        result: FloatArray = (self.requests + self.gain) / (self.pass_s + self.prepare_s[:, None])
        result[1:, 0] = 0.0
        return result


def decide(
    drafter: str, gain: GainModel, cost: CostModel, previous: DrafterDecision | None
) -> DrafterDecision:
    """Plans every step of the ladder. ``previous`` is kept where it is within the margin."""
    steps, positions = len(cost.ladder), gain.positions
    draft = np.zeros(steps, dtype=np.int64)
    verify = np.zeros((steps, positions + 1), dtype=np.int64)
    rate, accepted, pass_s, prepare_s = (
        np.zeros(steps),
        *(np.zeros((steps, positions + 1)) for _ in range(3)),
    )
    kept = (
        previous if previous is not None and previous.verify_tokens.shape == verify.shape else None
    )
    rows = np.arange(positions + 1)
    for s, pool in enumerate(gain.pools(cost.ladder)):
        stage = tabulate(drafter, gain, cost, s, pool)
        rate[s], draft[s] = choose_draft(stage, int(kept.draft_tokens[s]) if kept else None)
        column = choose_verify(stage, rate[s], kept.verify_tokens[s] if kept else None)
        verify[s] = stage.verify[column]
        if verify[s, draft[s]] == 0:
            draft[s] = 0
        accepted[s], pass_s[s] = stage.gain[rows, column], stage.pass_s[rows, column]
        prepare_s[s] = stage.prepare_s
    return DrafterDecision(drafter, draft, verify, rate, accepted, pass_s, prepare_s)


def tabulate(drafter: str, gain: GainModel, cost: CostModel, step: int, pool: Pool) -> Stage:
    """Gain and seconds of every candidate at one ladder step, as expectations over the pool."""
    n, positions = cost.ladder[step], gain.positions
    verify = candidates(n, positions, cost)
    rows = n + np.arange(verify[-1] + 1)
    row_s = cost.target_s[rows] + cost.feed_s[drafter][rows]
    valid = verify[None, :] <= n * np.arange(1, positions + 1)[:, None]
    pass_s = np.full((positions + 1, verify.size), np.inf)
    accepted = np.zeros(pass_s.shape)
    reached, expected_s = expected_pass_s(pool, row_s, verify)
    np.copyto(pass_s[1:], expected_s, where=valid)
    found = gain.accepted(n, pool, verify.astype(np.float64), reached)
    np.multiply(found, valid, out=accepted[1:])
    # Without drafts the drafter is not fed: what it costs when off is the worker's idle grade.
    pass_s[0, 0] = cost.target_s[n]
    prepare_s = cost.draft_s[drafter][step, : positions + 1] + cost.host_s[step]
    return Stage(n, verify, accepted, pass_s, prepare_s)


def expected_pass_s(
    pool: Pool, row_s: FloatArray, verify: IntArray
) -> tuple[FloatArray, FloatArray]:
    """E[min(V, m)] over the pool m, and E of the time of n + min(V, m) rows, (K, C) each;
    ``row_s[v]`` is for n + v rows.

    The time is the sum over the rows v ≤ V where it changes of P(m ≥ v) times the change. A dense
    pool always holds V drafts.
    """
    wanted = verify[None, :].astype(np.float64)
    if isinstance(pool, DensePool):
        at_rows = np.broadcast_to(row_s[verify], (pool.size.size, verify.size))
        return pool.expected_min(wanted), at_rows
    change = np.diff(row_s)
    changed = np.flatnonzero(change)
    # One question to the pool for all: the arrays are small, the calls are what costs.
    points = np.concatenate([wanted[0], changed, changed + 1.0])[None, :]
    found = pool.expected_min(points)
    first, second = verify.size, verify.size + changed.size
    rise = found[:, second:] - found[:, first:second]
    rise *= change[changed]
    added = np.full((found.shape[0], changed.size + 1), row_s[0])
    np.cumsum(rise, axis=1, out=added[:, 1:])
    added[:, 1:] += row_s[0]
    return found[:, :first], added.take(changed.searchsorted(verify), axis=1)


def candidates(requests: int, positions: int, cost: CostModel) -> IntArray:
    """Ascending V: bucket edges and n·d where rows are padded, every count where they are not."""
    return _candidates(requests, positions, cost.max_rows, cost.edges)


@lru_cache(maxsize=4096)
def _candidates(requests: int, positions: int, max_rows: int, edges: tuple[int, ...]) -> IntArray:
    most = max(min(requests * positions, max_rows - requests), 0)
    if not edges:
        return np.arange(most + 1)
    full = requests * np.arange(positions + 1)
    verify = np.concatenate([np.array(edges) - requests, full, [most]])
    return np.unique(verify[(verify >= 0) & (verify <= most)])


def choose_draft(stage: Stage, previous: int | None) -> tuple[float, int]:
    """Stage 2: (ρ, d*). The shortest of equals; the previous one while it is within the margin."""
    best = stage.rates().max(axis=1)
    rate = float(best.max())
    if previous is not None and best[previous] >= rate * (1.0 - REPLACEMENT_MARGIN / 2):
        return rate, previous
    return rate, int(best.argmax())


def choose_verify(stage: Stage, rate: float, previous: IntArray | None) -> IntArray:
    """Stage 1: the column of V* for every carried d, (K + 1,). The fewest of equals."""
    value = stage.gain - rate * stage.pass_s
    best: IntArray = value.argmax(axis=1)
    if previous is None:
        return best
    rows = np.arange(best.size)
    column = np.minimum(np.searchsorted(stage.verify, previous), stage.verify.size - 1)
    loss = value[rows, best] - value[rows, column]
    allowed = REPLACEMENT_MARGIN / 2 * (stage.requests + stage.gain[rows, best])
    keep = (stage.verify[column] == previous) & (loss <= allowed)
    return np.where(keep, column, best)
