"""What leaves for the store at a flush, and how much one worker may contribute.

Knows the cap on one worker's weight. Does not know scopes or the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider_planner.core.sums import FLEET_CLASS, CellKey, Counts, merge, to_fields
from outrider_planner.core.worker_state import WorkerState

# With several workers, one gives at most this many times its even share of a cell.
_MOST_EVEN_SHARES = 4.0


def take_pending(workers: Sequence[WorkerState]) -> tuple[dict[str, int], dict[str, int]]:
    """Empties the workers' pending sums into fields of the deployment and of the fleet."""
    asked: dict[CellKey, float] = {}
    for worker in workers:
        for key, counts in worker.pending.items():
            asked[key] = asked.get(key, 0.0) + _weight(counts)
    share = _MOST_EVEN_SHARES / max(len(workers), 1)
    own: dict[str, int] = {}
    fleet: dict[str, int] = {}
    for worker in workers:
        for key, counts in worker.pending.items():
            bounded = _bounded(counts, asked[key] * share)
            merge(own, to_fields(key, bounded))
            merge(fleet, to_fields(CellKey(key.drafter, FLEET_CLASS), bounded))
        worker.pending = {}
    return own, fleet


def _weight(counts: Counts) -> float:
    return float(max(counts.asked.max(initial=0.0), counts.drafted.sum()))


def _bounded(counts: Counts, most: float) -> Counts:
    weight = _weight(counts)
    return counts if weight <= most else counts.floored(most / weight)
