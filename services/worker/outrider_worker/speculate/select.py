"""Which drafts get a row, when the budget is smaller than the pool. Pure.

The V drafts of highest estimated survival over all requests. Scores never rise along a chain, so
the pick is a prefix of each chain. With sampler match any pick is exact, whatever it looks at
(planner.md "Losslessness").
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from outrider_worker.engine.plans import Plan, ScoreMap
from outrider_worker.engine.types import Request

_CONDITIONAL_PRIOR = 0.6


def survival_of(survival_map: ScoreMap | None, position: int, score_bin: int) -> float:
    """What the map says; without one, a weak prior by position alone."""
    if survival_map is None:
        return _CONDITIONAL_PRIOR ** (position + 1)
    return survival_map.score(position, score_bin)


def chain_scores(request: Request, plan: Plan, drafter: str) -> list[float]:
    """Estimated survival of each of a request's drafts, non-increasing, times its class weight."""
    request_class = request.spec.request_class
    survival_map = plan.score_maps.get((drafter, request_class))
    weight = plan.class_weights.get(request_class, 1.0)
    scores: list[float] = []
    for position, score_bin in enumerate(request.draft.bins):
        score = survival_of(survival_map, position, score_bin)
        scores.append(min(weight * score, scores[-1] if scores else weight))
    return scores


def pick_prefixes(chains: Sequence[Sequence[float]], rows: int) -> list[int]:
    """How many drafts of each chain to verify so that the `rows` best are.

    Args:
        chains: scores by request, each non-increasing.
        rows: drafts to pick in all; more than exist picks everything.

    Ties go to the smaller position, then to the earlier chain.
    """
    if rows >= sum(len(chain) for chain in chains):
        return [len(chain) for chain in chains]
    picked = [0] * len(chains)
    frontier = [(-chain[0], 0, index) for index, chain in enumerate(chains) if chain]
    heapify(frontier)
    for _ in range(rows):
        _, position, index = frontier[0]
        picked[index] = following = position + 1
        if following < len(chains[index]):
            heapreplace(frontier, (-chains[index][following], following, index))
        else:
            heappop(frontier)
    return picked
