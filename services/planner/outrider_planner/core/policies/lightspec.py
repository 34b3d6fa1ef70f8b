"""``lightspec``: the published planner, literally, as the baseline to beat.

Minimises J(n, B, d) = [T(B) + C(n, B, d)] / clamp(B·progress, n, n(d + 1)), the seconds per token
of one round. Stage 1 takes B for the depth that was drafted, stage 2 the depth of the best pair.
Source: planner.md, "The baseline to beat". Its nine known failures are kept on purpose; so it
neither explores nor forgets, and knows no other objective than throughput.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider_planner.core.cost import CostModel, step_of
from outrider_planner.core.policies.base import (
    Decision,
    DrafterStatistics,
    Snapshot,
    draft_bound,
)
from outrider_planner.core.policies.history import RoundHistory
from outrider_planner.core.policies.static import OffPolicy
from outrider_planner.core.search import DrafterDecision, first_best
from outrider_planner.core.types import (
    BoolArray,
    DrafterCost,
    DrafterTraits,
    FloatArray,
    IntArray,
    Objective,
    ProbeDirective,
    WorkerLimits,
)


@dataclass(frozen=True, slots=True)
class LightspecPolicy:
    """Decides from the rounds that ran: ``Snapshot.rounds`` must be kept for it.

    Without any it believes that every draft is accepted, as it does before the first sample. Its
    costs are those first measured, where the history holds them.
    """

    @property
    def name(self) -> str:
        return "lightspec"

    @property
    def remembers_rounds(self) -> bool:
        """It reads ``Snapshot.rounds``."""
        return True

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """Every step for the n it stands for, the present step for the present n itself."""
        if cost is None:
            off = OffPolicy("no cost table was measured, so lightspec cannot price a row")
            return off.decide(snapshot, cost, limits, objective)
        rounds = snapshot.rounds or RoundHistory()
        cost = rounds.costs or cost
        present = _served(snapshot)
        found = tuple(
            _decide(item, present, rounds, cost, limits, snapshot) for item in snapshot.drafters
        )
        step = int(step_of(snapshot.ladder, np.array([max(snapshot.present_requests, 1)]))[0])
        return Decision(
            found,
            ProbeDirective(),
            _reason(found, present[step], step),
            snapshot.bounds.class_rules,
        )


def allowed_lengths(traits: DrafterTraits, most: int) -> IntArray:
    """0…K without attention, 1…K chained with it, K alone where a whole block is drafted."""
    if traits.cost is DrafterCost.PARALLEL:
        return np.array([most])
    return np.arange(min(1, most) if traits.writes_kv else 0, most + 1)


def draft_seconds(
    traits: DrafterTraits, cost: CostModel, step: int, rows: IntArray, positions: int
) -> FloatArray:
    """C(n, B, d) by family, (K + 1, C), for row counts (C,).

    D(B), the drafter over the verified rows, is the table's E(B); D(n) is the table's time for
    one draft; a block drafter's pass is the table's time for K.
    """
    measured_s = cost.draft_s[traits.name][step]
    lengths = np.arange(positions + 1)[:, None]
    fed_s = cost.feed_s[traits.name][None, rows]
    if traits.cost is DrafterCost.PARALLEL:
        steps_s = np.full(lengths.shape, measured_s[positions])
    elif traits.cost is DrafterCost.AUTOREGRESSIVE and traits.writes_kv:
        steps_s = np.maximum(lengths - 1, 0) * measured_s[1]
    elif traits.cost is DrafterCost.AUTOREGRESSIVE:
        fed_s, steps_s = 0.0 * fed_s, lengths * measured_s[1]
    else:
        fed_s, steps_s = 0.0 * fed_s, measured_s[: positions + 1, None]
    result: FloatArray = fed_s + steps_s
    return result


def expected_tokens(
    requests: int, rows: IntArray, positions: int, rounds: RoundHistory
) -> FloatArray:
    """clamp(B·progress(n, B, d), n, n(d + 1)), (K + 1, C): seen triples by their average.

    Triples never seen are filled breadth-first by depth with the survival of each depth.
    """
    verify = (rows - requests)[None, :]
    depths = np.arange(positions)[:, None]
    filled = np.clip(verify - requests * depths, 0, requests)
    # V ≤ n·d fills no depth beyond d, so this is the same for every d.
    unseen = requests + rounds.survival(positions) @ filled
    tokens = np.tile(unseen, (positions + 1, 1))
    for (b, d), progress in rounds.progress(requests).items():
        column = int(np.searchsorted(rows, b))
        if d <= positions and column < rows.size and rows[column] == b:
            tokens[d, column] = b * progress
    most = requests * np.arange(1.0, positions + 2)[:, None]
    result: FloatArray = np.clip(tokens, requests, most)
    return result


def captured_rows(requests: int, positions: int, cost: CostModel) -> IntArray:
    """Ascending B: captured sizes in [n, n(1 + K)], and n(1 + d) of every d.

    Where nothing is padded every row count is a size.
    """
    most = min(requests * (1 + positions), cost.max_rows)
    sizes = np.array(cost.edges) if cost.edges else np.arange(requests, most + 1)
    ends = requests * np.arange(1, positions + 2)
    rows = np.unique(np.concatenate([sizes, ends, [most]]))
    return rows[(rows >= requests) & (rows <= most)]


def _served(snapshot: Snapshot) -> tuple[int, ...]:
    """The n that every ladder step is decided for: its averages are by exact n."""
    served = list(snapshot.ladder)
    if snapshot.present_requests:
        step = step_of(snapshot.ladder, np.array([snapshot.present_requests]))[0]
        served[step] = min(snapshot.present_requests, snapshot.ladder[step])
    return tuple(served)


def _decide(
    item: DrafterStatistics,
    served: tuple[int, ...],
    rounds: RoundHistory,
    cost: CostModel,
    limits: WorkerLimits,
    snapshot: Snapshot,
) -> DrafterDecision:
    positions = item.gain.positions
    most = snapshot.bounds.capped(draft_bound(item.traits, limits))
    allowed = allowed_lengths(item.traits, most)
    steps, columns = len(served), np.arange(positions + 1)
    draft, rate = np.zeros(steps, dtype=np.int64), np.zeros(steps)
    verify = np.zeros((steps, positions + 1), dtype=np.int64)
    accepted, pass_s, prepare_s = (np.zeros(verify.shape) for _ in range(3))
    for s, n in enumerate(served):
        rows = captured_rows(n, positions, cost)
        tokens = expected_tokens(n, rows, positions, rounds)
        round_s = cost.target_s[rows] + draft_seconds(item.traits, cost, s, rows, positions)
        rates = np.where(_possible(n, rows, positions, cost), tokens / round_s, 0.0)
        column = first_best(rates, rates.max(), axis=1)
        best = rates[columns, column]
        draft[s] = allowed[first_best(best[allowed], best.max(), axis=0)]
        rate[s] = best[draft[s]]
        verify[s] = rows[column] - n
        accepted[s] = tokens[columns, column] - n
        pass_s[s] = cost.target_s[rows[column]] + cost.feed_s[item.traits.name][rows[column]]
        prepare_s[s] = cost.draft_s[item.traits.name][s, : positions + 1] + cost.every_round_s[s]
    return DrafterDecision(item.traits.name, draft, verify, rate, accepted, pass_s, prepare_s)


def _possible(requests: int, rows: IntArray, positions: int, cost: CostModel) -> BoolArray:
    """Which B may be launched at which d, (K + 1, C): captured ones, n, and n(1 + d)."""
    most = np.minimum(requests * np.arange(1, positions + 2), cost.max_rows)[:, None]
    ends = (rows == requests) | (rows == most)
    sizes = np.isin(rows, cost.edges) if cost.edges else np.ones(rows.size, dtype=bool)
    result: BoolArray = (rows <= most) & (ends | sizes)
    return result


def _reason(found: tuple[DrafterDecision, ...], requests: int, step: int) -> str:
    parts = []
    for item in found:
        d = int(item.draft_tokens[step])
        parts.append(
            f"{item.drafter} at n={requests} drafts {d} and launches "
            f"{requests + int(item.verify_tokens[step, d])} rows: "
            f"{item.rate[step]:.0f} tokens/s by its averages"
        )
    return "lightspec: " + ("; ".join(parts) or "the worker has no drafter")
