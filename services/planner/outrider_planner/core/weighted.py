"""What a worker's drafters bring together: forecasts, weighted by what was verified of each.

A drafter that nothing was verified of is forecast from its prior alone. Requests may never use it,
so that it must not speak for the worker. Does not know what is forecast, nor how.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider_planner.core.worker_state import WorkerState


def verified_of(worker: WorkerState) -> dict[str, float]:
    """By drafter the verified drafts behind its estimates (decayed count)."""
    return {name: found.verified for name, (_, found) in worker.estimates.items()}


def weighted_mean(
    forecasts: Mapping[str, float | None], verified: Mapping[str, float]
) -> float | None:
    """Mean of the forecasts by drafter; None where nothing was verified of any that has one."""
    known = [(value, verified.get(name, 0.0)) for name, value in forecasts.items() if value]
    weight = sum(count for _, count in known)
    return sum(value * count for value, count in known) / weight if weight > 0 else None
