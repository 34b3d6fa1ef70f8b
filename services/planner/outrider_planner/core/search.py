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

import numpy as np

from outrider_planner.core.cost import CostModel
from outrider_planner.core.gain import GainModel
from outrider_planner.core.stage import LatencyBound, Stage, at_column, chunks, tabulate
from outrider_planner.core.types import BoolArray, FloatArray, IntArray

# A running plan is replaced only by one that is predicted to gain more than this, half of it in
# either stage.
REPLACEMENT_MARGIN = 0.003
# Values this close, relative to their size, are equal: another machine may round otherwise.
TIE_RATIO = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a search must respect."""

    max_draft_tokens: int | None = None
    latency: LatencyBound | None = None


UNBOUND = Terms()


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


def decide(
    drafter: str,
    gain: GainModel,
    cost: CostModel,
    previous: DrafterDecision | None,
    terms: Terms = UNBOUND,
) -> DrafterDecision:
    """Plans every step of the ladder. ``previous`` is kept where it is within the margin."""
    shape = (len(cost.ladder), gain.positions + 1)
    if previous is not None and previous.verify_tokens.shape != shape:
        previous = None
    parts = []
    for steps in chunks(cost):
        stage = tabulate(drafter, gain, cost, steps, terms.latency)
        before = None
        if previous is not None:
            before = previous.draft_tokens[steps], previous.verify_tokens[steps]
        parts.append(_decide(stage, before, terms))
    draft, verify, rate, accepted, pass_s, prepare_s, token_s = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    bounded = token_s if terms.latency is not None else None
    return DrafterDecision(drafter, draft, verify, rate, accepted, pass_s, prepare_s, bounded)


def _decide(
    stage: Stage, before: tuple[IntArray, IntArray] | None, terms: Terms
) -> tuple[IntArray | FloatArray, ...]:
    """The columns of a decision for some steps; ``before``: d* and V* that run."""
    rate, draft = choose_draft(stage, before[0] if before else None, terms)
    steps = np.arange(rate.size)
    next_s = stage.prepare_s[steps, draft][:, None, None]
    column = choose_verify(
        stage, rate, before[1] if before else None, _usable(stage, next_s, terms)
    )
    verify, accepted, pass_s, prepare_s = stage.taken(column)
    draft = np.where(verify[steps, draft] == 0, 0, draft)
    token_s = np.zeros(rate.size)
    if terms.latency is not None:
        token_s = at_column(stage.token_s(next_s), column)[steps, draft]
    return draft, verify, rate, accepted, pass_s, prepare_s, token_s


def choose_draft(
    stage: Stage, previous: IntArray | None, terms: Terms = UNBOUND
) -> tuple[FloatArray, IntArray]:
    """Stage 2: (ρ, d*) of every step. The previous one while it is within the margin.

    Where no candidate keeps the latency bound, the one that comes nearest to it.
    """
    rates, steps = stage.rates(), np.arange(stage.requests.size)
    if terms.max_draft_tokens is not None:
        rates[:, terms.max_draft_tokens + 1 :] = 0.0
    usable = _usable(stage, stage.prepare_s[:, :, None], terms, rates > 0.0)
    if usable is not None:
        rates = np.where(usable, rates, 0.0)
    best = rates.max(axis=2)
    rate = best.max(axis=1)
    draft = first_best(best, rate[:, None], axis=1)
    if previous is None:
        return rate, draft
    kept = best[steps, previous] >= rate * (1.0 - REPLACEMENT_MARGIN / 2)
    return rate, np.where(kept, previous, draft)


def _usable(
    stage: Stage, prepare_s: FloatArray, terms: Terms, among: BoolArray | None = None
) -> BoolArray | None:
    """Which candidates keep the latency bound, (S, K + 1, C); None without one.

    Where none does, those that come nearest: of each carried d, or of all ``among``.
    """
    if terms.latency is None:
        return None
    token_s = stage.token_s(prepare_s)
    if among is None:
        nearest = token_s.min(axis=2, keepdims=True)
    else:
        nearest = token_s.min(axis=(1, 2), keepdims=True, initial=np.inf, where=among)
    result: BoolArray = token_s <= np.maximum(nearest, terms.latency.token_s) * (1.0 + TIE_RATIO)
    return result


def choose_verify(
    stage: Stage, rate: FloatArray, previous: IntArray | None, usable: BoolArray | None = None
) -> IntArray:
    """Stage 1: the column of V* for every step and carried d, (S, K + 1). The fewest of equals.

    ``usable`` (S, K + 1, C): what may be chosen.
    """
    value = stage.gain - rate[:, None, None] * stage.pass_s
    if usable is not None:
        value = np.where(usable, value, -np.inf)
    best = first_best(value, stage.requests[:, None, None], axis=2)
    if previous is None:
        return best
    same = stage.verify[:, None, :] == previous[:, :, None]
    column = same.argmax(axis=2)
    loss = at_column(value, best) - at_column(value, column)
    allowed = REPLACEMENT_MARGIN / 2 * (stage.requests[:, None] + at_column(stage.gain, best))
    return np.where(at_column(same, column) & (loss <= allowed), column, best)


def first_best(values: FloatArray, scale: float | FloatArray | IntArray, axis: int) -> IntArray:
    """Index of the first value that is the greatest but for float noise.

    ``scale``: the size of what the values are sums or differences of.
    """
    best = values.max(axis=axis, keepdims=True)
    result: IntArray = (values >= best - TIE_RATIO * scale).argmax(axis=axis)
    return result
