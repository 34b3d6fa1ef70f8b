"""All that one worker's reports taught: counts near and far in time, and whether they still hold.

Knows how outcomes are counted, tested against what was believed of them, and turned into
estimates. Does not know costs, plans, the store or the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from outrider_planner.core.blend import SLOW_WEIGHT
from outrider_planner.core.calibration import Calibration
from outrider_planner.core.drift import TRUST_CUT, Belief, DriftTest, Outcome
from outrider_planner.core.ema import AcceptedAverage
from outrider_planner.core.histogram import Estimates, estimate, flattened
from outrider_planner.core.sums import FLEET_CLASS, CellKey, Counts, batch_weight
from outrider_planner.core.types import MAX_BINS, DrafterTraits, FloatArray, RoundColumns

Key = TypeVar("Key", bound=Hashable)
ClassKey = tuple[str, str]
SlowCounts = Mapping[ClassKey, Counts]
# A class with less evidence than this is as good as never seen.
_LEAST_ASKED = 0.01
# The most trials that the deployment stands for at one position, over all bins.
_MOST_FAR_CHAINS = SLOW_WEIGHT * MAX_BINS


@dataclass(slots=True, eq=False)
class Evidence:
    """``fast`` fades by drafting rounds; ``pending`` waits for the store; ``totals`` only grow.

    ``estimates``: per drafter the classes and what is believed of them, flat where scores are
    useless. ``drifts`` by class and ``calibrations`` by drafter judge the beliefs.
    """

    fast: dict[ClassKey, Counts] = field(default_factory=dict)
    pending: dict[CellKey, Counts] = field(default_factory=dict)
    totals: dict[str, Counts] = field(default_factory=dict)
    estimates: dict[str, tuple[tuple[str, ...], Estimates]] = field(default_factory=dict)
    drifts: dict[ClassKey, DriftTest] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    average: AcceptedAverage = field(default_factory=AcceptedAverage)
    # By class, scores taken at their word also where plans are not.
    _believed: dict[ClassKey, Belief] = field(default_factory=dict)

    def absorb(self, rounds: RoundColumns, cells: Sequence[tuple[CellKey, Counts]]) -> int:
        """Counts a bounded report; returns in how many classes acceptance has changed.

        Evidence fades with rounds that drafted: while off, what was learned stays known. What is
        older than a change counts little from then on, here and in the deployment.
        """
        drafting = int((rounds.carried_draft_tokens > 0).sum())
        self.average.observe(rounds)
        self._fade(drafting)
        weight, changes = batch_weight(drafting), 0
        for key, found in _by_class(cells).items():
            changes += self._judge(key, found)
            _add(self.fast, key, found, weight)
        self.keep(cells)
        return changes

    def keep(self, cells: Sequence[tuple[CellKey, Counts]]) -> None:
        """Counts for the store and in the totals, and believes nothing else for it."""
        for cell, counts in cells:
            _add(self.pending, cell, counts)
            _add(self.totals, cell.drafter, counts)

    def _fade(self, drafting_rounds: int) -> None:
        for calibration in self.calibrations.values():
            calibration.fade(drafting_rounds)
        for key, counts in list(self.fast.items()):
            counts.fade(drafting_rounds)
            if counts.asked[0] < _LEAST_ASKED:
                del self.fast[key]
                self.drifts.pop(key, None)
            elif key in self.drifts:
                self.drifts[key].recover(drafting_rounds)

    def _judge(self, key: ClassKey, found: Counts) -> bool:
        """Holds outcomes against what was believed; older evidence is cut after a change."""
        believed = self._believed.get(key)
        if believed is None or not found.asked.any():
            return False
        seen = found.view(*believed.survival.shape)
        self.calibrations.setdefault(key[0], Calibration()).observe(
            seen.verified, seen.accepted, believed.survival, believed.plain
        )
        test, own = self.drifts.setdefault(key, DriftTest()), self.fast.get(key)
        chains = float(own.asked[0]) if own is not None else 0.0
        outcome = Outcome.of(seen, believed, chains + test.trust * _MOST_FAR_CHAINS)
        changed = test.observe(outcome)
        if changed and own is not None:
            own.scale(TRUST_CUT)
        return changed

    def estimate(
        self, traits: DrafterTraits, positions: int, slow: SlowCounts, fleet: SlowCounts
    ) -> tuple[tuple[str, ...], Estimates]:
        """The classes of a drafter and what is believed of each, kept for those who ask why."""
        name, bins = traits.name, traits.score_bins
        classes, nothing = self._classes(name, slow), Counts.zeros(positions)
        own, shared = (
            [source.get((name, c), nothing).view(positions, bins) for c in classes]
            for source in (self.fast, slow)
        )
        fleet_counts = fleet.get((name, FLEET_CLASS), nothing).view(positions, bins)
        trust = np.array([self.trust((name, c)) for c in classes])
        found = estimate(own, shared, fleet_counts, traits.sparse, trust)
        flat = flattened(found)
        worth = found.length * found.mean_survival
        for place, c in enumerate(classes):
            plain = flat.survival[place, :, 0]
            self._believed[name, c] = Belief(found.survival[place], plain, worth[place])
        if bins > 1 and name in self.calibrations and not self.calibrations[name].useful:
            found = flat
        self.estimates[name] = (classes, found)
        return self.estimates[name]

    def adopt(self, other: Evidence) -> None:
        """Believes what another's counts say, until it estimates for itself.

        In dictionaries of its own: what it then comes to believe is nobody else's.
        """
        self.estimates, self._believed = dict(other.estimates), dict(other._believed)

    def asked(self) -> dict[str, FloatArray]:
        """By drafter the fading request-rounds by position, (K,), asked for drafts so long."""
        found: dict[str, FloatArray] = {}
        for (drafter, _), counts in self.fast.items():
            found[drafter] = found.get(drafter, 0.0) + counts.asked
        return found

    def trust(self, key: ClassKey) -> float:
        """How far the deployment speaks for this worker's class: 1, and less after a change."""
        return self.drifts[key].trust if key in self.drifts else 1.0

    @property
    def unsettled(self) -> bool:
        """Whether acceptance changed so lately that reports should come early."""
        return any(test.trust < 0.5 for test in self.drifts.values())

    def _classes(self, drafter: str, slow: SlowCounts) -> tuple[str, ...]:
        """Classes seen by this worker; before it saw any, those of the deployment."""
        own = sorted(c for d, c in self.fast if d == drafter)
        return tuple(own or sorted(c for d, c in slow if d == drafter) or ("default",))


def pool_bands(cells: Mapping[CellKey, Counts]) -> dict[ClassKey, Counts]:
    """Sums by (drafter, class), context bands added up."""
    return _by_class(list(cells.items()))


def _by_class(cells: Sequence[tuple[CellKey, Counts]]) -> dict[ClassKey, Counts]:
    pooled: dict[ClassKey, Counts] = {}
    for key, counts in cells:
        _add(pooled, (key.drafter, key.request_class), counts)
    return pooled


def _add(into: dict[Key, Counts], key: Key, found: Counts, weight: float = 1.0) -> None:
    """Adds to what is known under a key; a new one gets as many positions and bins as were found,
    since a small drafter needs little memory."""
    known = into.get(key)
    if known is None:
        known = into[key] = Counts.zeros(found.asked.size, found.grid.shape[2])
    known.add(found, weight)
