"""One cell of a plan laid open: G, T, E, D, c and the rate of drafting d and verifying V at one n.

The same arithmetic as the search, for cells that a policy chose and for their rivals, so that
policies that forecast nothing themselves can be compared with those that do. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider_planner.core.cost import CostModel
from outrider_planner.core.policies.base import Decision, DrafterStatistics
from outrider_planner.core.stage import chunks, expected_pass_s, tabulate
from outrider_planner.core.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Cell:
    """Expectations over the pool of one round at n = ``requests``; times in seconds.

    ``target_s`` is T with what the requests' context adds to it.
    ``verify_tokens`` and ``rows`` are ceilings: a sparse drafter's round often has fewer.
    ``rate_tokens_per_s`` = (n + G) / (T + E + D + c); the ratio is to the rate without drafts.
    """

    requests: int
    draft_tokens: int
    verify_tokens: int
    rows: int
    accepted_tokens: float
    target_s: float
    feed_s: float
    draft_s: float
    host_s: float
    rate_tokens_per_s: float
    rate_vs_off_ratio: float

    @property
    def round_s(self) -> float:
        """T + E + D + c."""
        return self.target_s + self.feed_s + self.draft_s + self.host_s


def cell(
    known: DrafterStatistics, cost: CostModel, step: int, draft_tokens: int, verify_tokens: int
) -> Cell:
    """The cell (n of the ladder step, d, V); d = 0 or V = 0 is a round that feeds nothing."""
    n, name = cost.ladder[step], known.traits.name
    verify = min(verify_tokens, n * draft_tokens, max(cost.max_rows - n, 0))
    gain, target_s, feed_s = 0.0, float(cost.target_s[n]), 0.0
    if verify > 0:
        pool, upto, row = known.gain.pool(n), np.arange(verify + 1), draft_tokens - 1
        gain = float(known.gain.accepted(n, pool, np.array([float(verify)]))[row, 0])
        target_s = float(expected_pass_s(pool, cost.target_s, n, upto)[1][row, -1])
        feed_s = float(expected_pass_s(pool, cost.feed_s[name], n, upto)[1][row, -1])
    target_s += float(cost.context_s[step])
    draft_s, host_s = float(cost.draft_s[name][step, draft_tokens]), float(cost.host_s[step])
    rate = (n + gain) / (target_s + feed_s + draft_s + host_s)
    off = float(cost.off_rate()[step])
    return Cell(
        *(n, draft_tokens, verify, n + verify, gain),
        *(target_s, feed_s, draft_s, host_s, rate, rate / off),
    )


def chosen(decision: Decision, known: DrafterStatistics, cost: CostModel, step: int) -> Cell | None:
    """What a decision does with a drafter in the steady state of one n; None if it has no plan."""
    for item in decision.drafters:
        if item.drafter == known.traits.name:
            d = int(item.draft_tokens[step])
            return cell(known, cost, step, d, int(item.verify_tokens[step, d]))
    return None


def steady(
    decision: Decision, drafters: Sequence[DrafterStatistics], cost: CostModel, step: int
) -> Cell | None:
    """The best of a decision's cells over all drafters; None where there is no drafter."""
    found = [c for item in drafters if (c := chosen(decision, item, cost, step)) is not None]
    return max(found, key=lambda item: item.rate_tokens_per_s, default=None)


def rivals(
    known: DrafterStatistics, cost: CostModel, step: int, taken: Cell, most: int = 2
) -> tuple[Cell, ...]:
    """The best cells of *other* draft lengths, off among them, best first.

    A neighbour in V differs by next to nothing; another length is what a reader asks about.
    """
    rates, verify = _best_by_length(known, cost, step)
    order = np.argsort(-rates, kind="stable")
    lengths = [int(d) for d in order if d != taken.draft_tokens][:most]
    return tuple(cell(known, cost, step, d, int(verify[d])) for d in lengths)


def best_cell(
    known: DrafterStatistics, cost: CostModel, step: int, draft_tokens: int
) -> Cell | None:
    """One draft length with the V that serves it best; None where no such draft can be verified."""
    if draft_tokens > known.gain.positions:
        return None
    verify = int(_best_by_length(known, cost, step)[1][draft_tokens])
    if draft_tokens > 0 and verify == 0:
        return None
    return cell(known, cost, step, draft_tokens, verify)


def _best_by_length(
    known: DrafterStatistics, cost: CostModel, step: int
) -> tuple[FloatArray, IntArray]:
    """The best rate of every draft length at one n and the V that gives it, (K + 1,) each."""
    stage = tabulate(known.traits.name, known.gain, cost, slice(step, step + 1))
    rates = stage.rates()[0]
    best = rates.argmax(axis=1)
    return rates[np.arange(best.size), best], stage.verify[0, best]


def ratios_by_length(known: DrafterStatistics, cost: CostModel) -> FloatArray:
    """The best rate of every (n, d) over that without drafts, (steps, K + 1).

    0 where no draft of that length can be verified at all.
    """
    stages = [tabulate(known.traits.name, known.gain, cost, steps) for steps in chunks(cost)]
    ratios: FloatArray = np.concatenate([stage.rates().max(axis=2) for stage in stages])
    ratios /= cost.off_rate()[:, None]
    no_room = np.concatenate([stage.verify[:, -1] == 0 for stage in stages])
    ratios[no_room, 1:] = 0.0
    return ratios


def forecast_ratio(decision: Decision, cost: CostModel, drafter: str, step: int) -> float | None:
    """A decision's own predicted rate over that without drafts; None where it forecasts none."""
    off = float(cost.off_rate()[step])
    rates = [float(item.rate[step]) for item in decision.drafters if item.drafter == drafter]
    return rates[0] / off if rates and rates[0] > 0 and off > 0 else None
