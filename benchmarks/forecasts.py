"""Acceptance foretold and acceptance found: a drafter's outcomes taken in as a planner would.

Every report of a few rounds is foretold from what came before it alone, then counted. Knows the
planner's statistics and the ways to foretell; knows neither prompts nor engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from outrider_planner.core.calibration import raw_survival
from outrider_planner.core.evidence import Evidence
from outrider_planner.core.histogram import estimate, flattened
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    MAX_BINS,
    DrafterTraits,
    FloatArray,
    RoundColumns,
)
from outrider_worker.engine.records import DraftOutcome
from outrider_worker.engine.tally import AcceptanceCell
from outrider_worker.speculate.drafter import PREDICTED

RAW, COLD, BY_POSITION, BY_SCORE = "raw", "cold", "by_position", "by_score"
"""What a score claims by itself (probabilities alone); what is believed before any outcome; what is
learnt without scores, and with them."""
LENGTHS_OF_MATCHES = ("ngram", PREDICTED)
"""Whose scores are no probabilities."""
ECE_GROUPS = 10
_CLASS = "asked"


@dataclass
class Forecast:
    """Survivals foretold, and what became of the drafts; one entry for each cell of each report."""

    foretold: list[FloatArray] = field(default_factory=list)
    verified: list[FloatArray] = field(default_factory=list)
    accepted: list[FloatArray] = field(default_factory=list)

    def add(self, survival: FloatArray, counts: Counts) -> None:
        """survival (K, S) of the drafts that `counts` counts."""
        seen = counts.verified > 0
        self.foretold.append(np.broadcast_to(survival, seen.shape)[seen])
        self.verified.append(counts.verified[seen])
        self.accepted.append(counts.accepted[seen])

    def calibration_error(self) -> float:
        """Expected calibration error (Naeini et al. 2015): the mean over drafts of how far the
        drafts of about the same forecast, tenths of 0…1, are off it together."""
        foretold, verified, accepted = self._columns()
        group = np.minimum((foretold * ECE_GROUPS).astype(np.int64), ECE_GROUPS - 1)
        off = np.bincount(group, foretold * verified - accepted, ECE_GROUPS)
        return float(np.abs(off).sum() / verified.sum())

    def brier(self) -> float:
        """Mean squared error over drafts (Brier 1950): it also tells what scores tell apart."""
        foretold, verified, accepted = self._columns()
        wrong = accepted * (1 - foretold) ** 2 + (verified - accepted) * foretold**2
        return float(wrong.sum() / verified.sum())

    def second_half(self) -> Forecast:
        """Of the reports: by then there is something to foretell from."""
        half = len(self.foretold) // 2
        return Forecast(self.foretold[half:], self.verified[half:], self.accepted[half:])

    def _columns(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        columns = (self.foretold, self.verified, self.accepted)
        foretold, verified, accepted = map(np.concatenate, columns)
        return foretold, verified, accepted


class Learner:
    """One drafter's outcomes in one class of requests, from nothing on.

    reports_by_score: those foretold by score where plans are made of it. Where position alone has
    foretold better, the planner leaves scores aside (calibration.py there).
    """

    def __init__(self, traits: DrafterTraits) -> None:
        self._traits = traits
        self._evidence = Evidence()
        self.total = Counts.zeros(traits.max_draft_tokens)
        self.reports = self.reports_by_score = 0
        _, cold = self._evidence.estimate(traits, traits.max_draft_tokens, {}, {})
        self._claims = {COLD: cold.survival[0]}
        if traits.score_bins == MAX_BINS and traits.name not in LENGTHS_OF_MATCHES:
            self._claims[RAW] = raw_survival()
        self.forecasts = {way: Forecast() for way in (*self._claims, BY_POSITION, BY_SCORE)}

    def take(self, outcomes: Sequence[DraftOutcome], rounds: int) -> None:
        """One report of so many rounds: foretold, then counted."""
        survivals, traits = self._foretell(), self._traits
        counts = _counted(outcomes, traits.max_draft_tokens)
        self.total.add(counts)
        for way, forecast in self.forecasts.items():
            forecast.add(survivals[way], counts.view(traits.max_draft_tokens, traits.score_bins))
        key = CellKey(traits.name, _CLASS)
        self._evidence.absorb(_drafting(rounds), [(key, counts)])

    def _foretell(self) -> Mapping[str, FloatArray]:
        """Survival by (position, bin), (K, S), in every way."""
        traits, name = self._traits, self._traits.name
        self._evidence.estimate(traits, traits.max_draft_tokens, {}, {})  # what it is judged by
        judged = self._evidence.calibrations.get(name)
        self.reports += 1
        self.reports_by_score += judged is None or judged.useful
        nothing = Counts.zeros(traits.max_draft_tokens, traits.score_bins)
        known = self._evidence.fast.get((name, _CLASS))
        near = known.view(traits.max_draft_tokens, traits.score_bins) if known else nothing
        found = estimate([near], [nothing], nothing, traits.sparse)
        learnt = {BY_POSITION: flattened(found).survival[0], BY_SCORE: found.survival[0]}
        return {**self._claims, **learnt}


def _counted(outcomes: Sequence[DraftOutcome], positions: int) -> Counts:
    cell, counts = AcceptanceCell(), Counts.zeros(positions)
    for outcome in outcomes:
        cell.add(outcome)
    counts.asked[: len(cell.asked_by_position)] = cell.asked_by_position
    for (position, score_bin), found in cell.by_bin.items():
        counts.grid[:, position, score_bin] = found
    return counts


def _drafting(rounds: int) -> RoundColumns:
    """So many rounds that drafted, by which evidence fades; nothing else of them counts."""
    nothing = {each.name: np.zeros(rounds, dtype=np.int64) for each in fields(RoundColumns)}
    one = np.ones(rounds, dtype=np.int64)
    return RoundColumns(
        **{**nothing, "requests": one, "target_rows": one, "carried_draft_tokens": one}
    )
