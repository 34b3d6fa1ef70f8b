"""While speculation is on: now and then one draft more, at a price that is known and small.

Positions beyond the planned length are drafted by nobody, so nothing would show that they have
become worth it. Knows when to look and what looking may cost. Does not know how a plan is found;
what it returns is for one span of rounds and must not become the plan that later ones are held
against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from outrider_planner.core.cost import CostModel
from outrider_planner.core.policies.base import Decision
from outrider_planner.core.search import DrafterDecision
from outrider_planner.core.types import FloatArray

COST_RATIO = 0.003
SPAN_ROUNDS = 32
# One span in so many at most, and none where even one in so many would cost too much.
LEAST_SPANS, MOST_SPANS = 16, 128
# With so many request-rounds of its own a position is known: the planned one must be, the next
# one must not.
_KNOWN_ASKED = 64.0


def explored(
    decision: Decision,
    cost: CostModel,
    step: int,
    rounds: int,
    asked: Mapping[str, FloatArray],
    most_tokens: int | None = None,
) -> Decision:
    """The decision, drafting and verifying one token more at the present step, if it is time.

    ``rounds``: how many the worker has played. ``asked``: by drafter the request-rounds by
    position, (K,), that were asked for drafts so long lately. ``most_tokens``: an operator's cap.
    """
    found = tuple(
        _deeper(item, cost, step, rounds, asked.get(item.drafter), most_tokens)
        for item in decision.drafters
    )
    if all(new is old for new, old in zip(found, decision.drafters, strict=True)):
        return decision
    reason = f"{decision.reason}; for {SPAN_ROUNDS} rounds one draft more, to see what it brings"
    return replace(decision, drafters=found, reason=reason)


def _deeper(
    item: DrafterDecision,
    cost: CostModel,
    step: int,
    rounds: int,
    asked: FloatArray | None,
    most_tokens: int | None,
) -> DrafterDecision:
    n, d = cost.ladder[step], int(item.draft_tokens[step])
    positions = item.verify_tokens.shape[1] - 1
    most = positions if most_tokens is None else min(positions, most_tokens)
    if not 0 < d < most or item.rate[step] <= 0.0:
        return item
    if asked is None or asked[d - 1] < _KNOWN_ASKED or asked[d] >= _KNOWN_ASKED:
        return item
    verify = min(int(item.verify_tokens[step, d]) + n, n * (d + 1), cost.max_rows - n)
    spans = max(ceil(_loss_ratio(item, cost, step, verify) / COST_RATIO), LEAST_SPANS)
    if spans > MOST_SPANS or rounds // SPAN_ROUNDS % spans != spans - 1:
        return item
    draft, table = item.draft_tokens.copy(), item.verify_tokens.copy()
    draft[step], table[step, d + 1] = d + 1, verify
    return replace(item, draft_tokens=draft, verify_tokens=table)


def _loss_ratio(item: DrafterDecision, cost: CostModel, step: int, verify: int) -> float:
    """What a round of one draft more loses if it brings nothing, relative."""
    n, d = cost.ladder[step], int(item.draft_tokens[step])
    before = n + int(item.verify_tokens[step, d])
    feed_s = cost.feed_s[item.drafter]
    pass_s = cost.target_s[n + verify] - cost.target_s[before] + feed_s[n + verify] - feed_s[before]
    prepare_s = item.prepare_s[step, d + 1] - item.prepare_s[step, d]
    added_s = max(float(pass_s + prepare_s), 0.0)
    return added_s / (float(item.pass_s[step, d] + item.prepare_s[step, d]) + added_s)
