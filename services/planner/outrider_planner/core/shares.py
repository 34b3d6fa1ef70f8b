"""What leaves for the store at a flush, and how much one worker may contribute.

Knows the cap on one worker's weight. Does not know scopes or the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from outrider_planner.core.sums import FLEET_CLASS, CellKey, Counts, merge, to_fields, total
from outrider_planner.core.worker_state import WorkerState

# Of the workers that bring something to a cell, one gives at most this many times its even share.
_MOST_EVEN_SHARES = 4.0


def take_pending(workers: Sequence[WorkerState]) -> tuple[dict[str, int], dict[str, int]]:
    """Empties the workers' pending sums into fields of the deployment and of the fleet."""
    brought: dict[CellKey, list[Counts]] = {}
    for worker in workers:
        for key, counts in worker.pending.items():
            brought.setdefault(key, []).append(counts)
        worker.pending.clear()
    own: dict[str, int] = {}
    fleet: dict[str, int] = {}
    for key, each in brought.items():
        most = most_weight([_weight(counts) for counts in each])
        positions = max(counts.asked.size for counts in each)
        whole = total((_bounded(counts, most) for counts in each), positions)
        merge(own, to_fields(key, whole))
        merge(fleet, to_fields(CellKey(key.drafter, FLEET_CLASS), whole))
    return own, fleet


def most_weight(weights: Sequence[float]) -> float:
    """The largest cap under which no weight is above 4/N of the sum of all N capped ones.

    Measured against what is left, not against what was claimed: a worker that claims a million
    rounds must not raise its own cap. Infinite where nobody has too much.
    """
    falling = sorted(weights, reverse=True)
    part = _MOST_EVEN_SHARES / max(len(falling), 1)
    # Summed from the smallest on: subtracting a huge claim would leave its rounding behind.
    rests = [*accumulate(reversed(falling))][::-1]
    # With the largest `cut` weights at the cap and the others whole: cap = part · (cut·cap + rest).
    for cut, largest in enumerate(falling):
        cap = part * rests[cut] / (1.0 - part * cut) if part * cut < 1.0 else float("inf")
        if cap >= largest:
            return cap if cut else float("inf")
    return float("inf")


def _weight(counts: Counts) -> float:
    return float(max(counts.asked.max(initial=0.0), counts.drafted.sum()))


def _bounded(counts: Counts, most: float) -> Counts:
    weight = _weight(counts)
    return counts if weight <= most else counts.floored(most / weight)
