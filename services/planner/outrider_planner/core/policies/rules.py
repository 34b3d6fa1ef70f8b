"""An operator's bounds, applied to what is believed: class rules and a bound on latency.

Knows how a rule for a class changes G. Does not know costs or how a plan is searched.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider_planner.core.gain import class_gains, gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.policies.base import Bounds, DrafterStatistics, Snapshot
from outrider_planner.core.stage import LatencyBound
from outrider_planner.core.types import ClassRule, FloatArray

# A class with fewer of the request-rounds has next to left; its bound is not looked at.
LEAST_SHARE = 0.01


def bounded(snapshot: Snapshot, bounds: Bounds) -> Snapshot:
    """The snapshot as an operator's bounds make it: every policy sees the gain that is left."""
    drafters = snapshot.drafters
    if bounds.class_rules:
        drafters = tuple(_ruled(item, bounds.class_rules) for item in drafters)
    return replace(snapshot, drafters=drafters, bounds=bounds)


def latency_bound(item: DrafterStatistics, bounds: Bounds) -> LatencyBound | None:
    """The bound on seconds between tokens for every class that runs; None without one.

    Without estimates by class all requests are one class.
    """
    if bounds.latency_bound_s is None:
        return None
    if item.estimates is None:
        return LatencyBound(bounds.latency_bound_s, (item.gain,), np.ones(1))
    weights = class_weights(item.classes, bounds.class_rules)
    parts = class_gains(item.estimates, item.gain.sparse, weights)
    shares = item.estimates.class_share
    running = np.flatnonzero(shares >= min(LEAST_SHARE, float(shares.max())))
    gains = tuple(parts[c] for c in running)
    return LatencyBound(bounds.latency_bound_s, gains, shares[running])


def _ruled(item: DrafterStatistics, rules: tuple[ClassRule, ...]) -> DrafterStatistics:
    """Capped classes have shorter drafts, weighted ones are picked earlier or later."""
    if item.estimates is None or not {rule.request_class for rule in rules} & set(item.classes):
        return item
    estimates = _capped(item.estimates, item.classes, rules)
    # Where a class is capped the pool is smaller than n·d, as a sparse drafter's is.
    sparse = item.gain.sparse or bool((estimates.length < item.estimates.length).any())
    gain = gain_model(estimates, sparse, class_weights(item.classes, rules))
    return replace(item, gain=gain, estimates=estimates)


def _capped(
    estimates: Estimates, classes: tuple[str, ...], rules: tuple[ClassRule, ...]
) -> Estimates:
    length = estimates.length.copy()
    for rule in rules:
        if rule.max_draft_tokens is not None and rule.request_class in classes:
            length[classes.index(rule.request_class), rule.max_draft_tokens :] = 0.0
    return replace(estimates, length=length)


def class_weights(classes: tuple[str, ...], rules: tuple[ClassRule, ...]) -> FloatArray:
    """The weight of every class's drafts in the choice of rows, (C,); 1 where no rule names it."""
    by_class = {rule.request_class: rule.weight for rule in rules}
    return np.array([by_class.get(name, 1.0) for name in classes])
