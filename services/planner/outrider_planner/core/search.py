"""The two-stage search: from a gain model and costs to d*(n), V*(n, d) and ρ(n).

Stage 2 maximises the long-run rate over (d', V'); its value is ρ(n), the price of a second.
Stage 1 maximises G − ρ·(T + E) over V for every carried d: drafting is already paid for there, so
D does not enter. Both are array expressions over all d and all candidates V of one n.

Knows nothing of where estimates and costs come from. d = 0 and V = 0 are ordinary candidates.
Equal candidates, within float noise, go to the smaller d and then to the smaller V, so that the
same inputs give the same integers on any machine. Axes: S ladder steps, K draft lengths, C
candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

from outrider_planner.core.caution import caution
from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.pools import DensePool, Pool
from outrider_planner.core.types import BoolArray, FloatArray, IntArray

# A running plan is replaced only by one that is predicted to gain more than this, half of it in
# either stage.
REPLACEMENT_MARGIN = 0.003
# Values this close, relative to their size, are equal: another machine may round otherwise.
TIE_RATIO = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class LatencyBound:
    """At most ``token_s`` seconds between two tokens of a request, in every class.

    ``gains``: the part of each class in G; ``shares`` (C,): its part of the requests.
    """

    token_s: float
    gains: tuple[GainModel, ...]
    shares: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a search must respect. ``chains``: evidence behind G, in request-rounds verified."""

    max_draft_tokens: int | None = None
    chains: float = inf
    latency: LatencyBound | None = None


# Nothing is uncertain and nothing is capped.
CERTAIN = Terms()


@dataclass(frozen=True, slots=True, eq=False)
class DrafterDecision:
    """The outcome for one drafter.

    ``draft_tokens`` (S,), ``verify_tokens`` (S, K + 1): d* and V* by carried d; ``rate`` (S,): ρ.
    Forecasts at V*: ``accepted`` (S, K + 1) drafts, ``pass_s`` (S, K + 1) = T + E;
    ``prepare_s`` (S, K + 1): D + c by the *next* length. So a round that verifies carried d and
    drafts d' takes ``pass_s[s, d] + prepare_s[s, d']``. ``token_s`` (S,): seconds between tokens
    in the slowest class, where latency is bounded.
    """

    drafter: str
    draft_tokens: IntArray
    verify_tokens: IntArray
    rate: FloatArray
    accepted: FloatArray
    pass_s: FloatArray
    prepare_s: FloatArray
    token_s: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """All candidates of one n. ``verify`` (C,); ``gain`` and ``pass_s`` (K + 1, C), which
    are 0 and infinite where V > n·d; ``prepare_s`` (K + 1,).

    ``slowest`` (K + 1, C): accepted drafts per request of the class that has fewest, for a bound
    on latency.
    """

    requests: int
    verify: IntArray
    gain: FloatArray
    pass_s: FloatArray
    prepare_s: FloatArray
    slowest: FloatArray | None = None

    def rates(self) -> FloatArray:
        """Tokens per second of every (d, V), (K + 1, C); 0 for drafting what is never verified.

        Where drafting costs nothing, that would tie with off, and hide that nothing is learned.
        """
        result: FloatArray = (self.requests + self.gain) / (self.pass_s + self.prepare_s[:, None])
        result[1:, 0] = 0.0
        return result

    def token_s(self, prepare_s: FloatArray) -> FloatArray:
        """Seconds between two tokens in the slowest class, (K + 1, C), preparing so long."""
        assert self.slowest is not None
        result: FloatArray = (self.pass_s + prepare_s) / (1.0 + self.slowest)
        return result


def decide(
    drafter: str,
    gain: GainModel,
    cost: CostModel,
    previous: DrafterDecision | None,
    terms: Terms = CERTAIN,
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
    token_s = None if terms.latency is None else np.zeros(steps)
    rows = np.arange(positions + 1)
    for s, pool in enumerate(gain.pools(cost.ladder)):
        stage = tabulate(drafter, gain, cost, s, pool, terms.latency)
        rate[s], draft[s] = choose_draft(stage, int(kept.draft_tokens[s]) if kept else None, terms)
        usable = _usable(stage, stage.prepare_s[draft[s]], terms)
        column = choose_verify(stage, rate[s], kept.verify_tokens[s] if kept else None, usable)
        verify[s] = stage.verify[column]
        if verify[s, draft[s]] == 0:
            draft[s] = 0
        accepted[s], pass_s[s] = stage.gain[rows, column], stage.pass_s[rows, column]
        prepare_s[s] = stage.prepare_s
        if token_s is not None:
            token_s[s] = stage.token_s(prepare_s[s, draft[s]])[draft[s], column[draft[s]]]
    return DrafterDecision(drafter, draft, verify, rate, accepted, pass_s, prepare_s, token_s)


def tabulate(
    drafter: str,
    gain: GainModel,
    cost: CostModel,
    step: int,
    pool: Pool,
    latency: LatencyBound | None = None,
) -> Stage:
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
    slowest = None if latency is None else _slowest(latency, n, pool, verify, reached)
    return Stage(n, verify, accepted, pass_s, prepare_s, slowest)


def _slowest(
    latency: LatencyBound, requests: int, pool: Pool, verify: IntArray, reached: FloatArray
) -> FloatArray:
    """Accepted drafts per request of the class that has fewest, (K + 1, C)."""
    each = [
        part.accepted(requests, pool, verify.astype(np.float64), reached) / (requests * share)
        for part, share in zip(latency.gains, latency.shares, strict=True)
    ]
    none = np.zeros((1, verify.size))
    return np.concatenate([none, np.maximum(np.min(each, axis=0), 0.0)])


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


def choose_draft(stage: Stage, previous: int | None, terms: Terms = CERTAIN) -> tuple[float, int]:
    """Stage 2: (ρ, d*). The previous one while it is within the margin.

    Off where speculation is not predicted to gain more than the doubt about it; in between, what
    runs already. Where no candidate keeps the latency bound, the one that comes nearest to it.
    """
    rates = stage.rates()
    if terms.max_draft_tokens is not None:
        rates[terms.max_draft_tokens + 1 :] = 0.0
    usable = _usable(stage, stage.prepare_s[:, None], terms, rates > 0.0)
    if usable is not None:
        rates = np.where(usable, rates, 0.0)
    best = rates.max(axis=1)
    drafting = 1 + int(best[1:].argmax())
    gain = float(stage.gain[drafting, rates[drafting].argmax()])
    off, rate = float(best[0]), float(best.max())
    wanted = caution(stage.requests, gain, terms.chains)
    if previous:
        wanted = wanted / 2 - REPLACEMENT_MARGIN / 2
    if off > 0.0 and best[drafting] <= off * (1.0 + wanted + TIE_RATIO):
        return off, 0
    if previous is not None and best[previous] >= rate * (1.0 - REPLACEMENT_MARGIN / 2):
        return rate, previous
    return rate, int(first_best(best, rate, axis=0))


def _usable(
    stage: Stage, prepare_s: FloatArray, terms: Terms, among: BoolArray | None = None
) -> BoolArray | None:
    """Which candidates keep the latency bound, (K + 1, C); None without one.

    Where none does, those that come nearest: of each carried d, or of all ``among``.
    """
    if terms.latency is None:
        return None
    token_s = stage.token_s(prepare_s)
    if among is None:
        nearest = token_s.min(axis=1, keepdims=True)
    else:
        nearest = token_s.min(initial=np.inf, where=among)
    result: BoolArray = token_s <= np.maximum(nearest, terms.latency.token_s) * (1.0 + TIE_RATIO)
    return result


def choose_verify(
    stage: Stage, rate: float, previous: IntArray | None, usable: BoolArray | None = None
) -> IntArray:
    """Stage 1: the column of V* for every carried d, (K + 1,). The fewest of equals.

    ``usable`` (K + 1, C): what may be chosen.
    """
    value = stage.gain - rate * stage.pass_s
    if usable is not None:
        value = np.where(usable, value, -np.inf)
    best = first_best(value, stage.requests, axis=1)
    if previous is None:
        return best
    rows = np.arange(best.size)
    column = np.minimum(np.searchsorted(stage.verify, previous), stage.verify.size - 1)
    loss = value[rows, best] - value[rows, column]
    allowed = REPLACEMENT_MARGIN / 2 * (stage.requests + stage.gain[rows, best])
    keep = (stage.verify[column] == previous) & (loss <= allowed)
    return np.where(keep, column, best)


def first_best(values: FloatArray, scale: float, axis: int) -> IntArray:
    """Index of the first value that is the greatest but for float noise.

    ``scale``: the size of what the values are sums or differences of.
    """
    best = values.max(axis=axis, keepdims=True)
    result: IntArray = (values >= best - TIE_RATIO * scale).argmax(axis=axis)
    return result
