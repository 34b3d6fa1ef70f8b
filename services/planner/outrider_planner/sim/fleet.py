"""What a fleet that served the same text before would have left in the store.

Knows how counts become the store's sums. Does not know the planner or the present run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from outrider_planner.core.sums import CellKey, Counts, to_fields
from outrider_planner.core.types import MAX_DRAFT_TOKENS, FloatArray, IntArray
from outrider_planner.sim.acceptance import Drafter
from outrider_planner.sim.cost_tables import DRAFTER
from outrider_planner.sim.scenarios import Scenario

_WARM_REQUEST_ROUNDS = 20_000


def class_names(scenario: Scenario) -> tuple[str, ...]:
    """Classes as the planner is told, by domain."""
    names = tuple(domain.name for domain in scenario.domains)
    return names if scenario.labelled else ("default",) * len(names)


@lru_cache(maxsize=64)
def fleet_sums(scenario: Scenario) -> Mapping[str, int]:
    """What a fleet that drafted and verified everything would have in the store."""
    rng = np.random.default_rng(12345)
    positions = scenario.draft_tokens
    drafter = Drafter(scenario.domains, scenario.spread, positions, rng)
    labels = class_names(scenario)
    shares = domain_shares(scenario)
    fields_: dict[str, int] = {}
    domain = rng.choice(shares.size, _WARM_REQUEST_ROUNDS, p=shares)
    logits = scenario.spread.request * rng.standard_normal(domain.size)
    logits += scenario.shift_at(0).logit
    drafts = drafter.draw(domain, logits, positions)
    accepted = (rng.random((domain.size, 1)) < drafts.survival).sum(axis=1)
    accepted = np.minimum(accepted, drafts.lengths)
    for label in dict.fromkeys(labels):
        of = np.isin(domain, [i for i, name in enumerate(labels) if name == label])
        counts = _counts(drafts.bins[of], drafts.lengths[of], accepted[of])
        for key in (CellKey(DRAFTER, label), CellKey(DRAFTER, "*")):
            for name, value in to_fields(key, counts).items():
                fields_[name] = fields_.get(name, 0) + value
    return fields_


def _counts(bins: IntArray, lengths: IntArray, accepted: IntArray) -> Counts:
    counts = Counts.zeros(MAX_DRAFT_TOKENS)
    position = np.arange(bins.shape[1])
    counts.asked[: position.size] = lengths.size
    stages = (lengths, lengths, accepted)
    for plane, reach in zip(counts.grid, stages, strict=True):
        mask = position < reach[:, None]
        np.add.at(plane, (np.broadcast_to(position, bins.shape)[mask], bins[mask]), 1.0)
    return counts


def domain_shares(scenario: Scenario) -> FloatArray:
    """Domains by share of the requests; those of the first shift where it sets one."""
    forced = scenario.shift_at(0).domain
    if forced is not None:
        alone = np.zeros(len(scenario.domains))
        alone[forced] = 1.0
        return alone
    weights: FloatArray = np.zeros(len(scenario.domains))
    for stretch in scenario.stretches:
        weights = weights + stretch.requests * np.array(stretch.mix)
    shares: FloatArray = weights / weights.sum()
    return shares
