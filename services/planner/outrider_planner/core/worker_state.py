"""One worker as the planner sees it: its fast statistics, costs, and the plan it was sent.

Knows how a bounded report changes this state and what a policy is given of it. Does not know
other workers, the store, or the time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from outrider_planner.core.bounds import MOST_CREDIT_S, BoundedReport, take
from outrider_planner.core.cost import CostModel, CostTracker, request_ladder, step_of
from outrider_planner.core.evidence import ClassKey, Evidence, SlowCounts
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.policies.base import (
    Decision,
    DrafterStatistics,
    Snapshot,
    draft_bound,
)
from outrider_planner.core.policies.history import RoundHistory
from outrider_planner.core.sums import CellKey, Counts
from outrider_planner.core.types import (
    DrafterTraits,
    FloatArray,
    GuardState,
    Hello,
    Plan,
    RoundColumns,
    ScoreMap,
)

# Workers send no report while idle; busy ones send at least one a second.
IDLE_AFTER_S = 3.0
# What a worker that says hello with other contents keeps: its place in time and its counters.
_KEPT = (
    *("last_sequence", "last_report_s", "last_plain_s", "credit_s", "version", "guard"),
    *("rounds", "clamps", "dropped_rounds", "rejected"),
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted against measured, means over the rounds of the latest report with any."""

    predicted_accepted_tokens: float
    realised_accepted_tokens: float
    predicted_round_s: float
    measured_round_s: float


@dataclass(slots=True, eq=False)
class WorkerState:
    """Everything kept of one incarnation; survives a reconnect."""

    hello: Hello
    stream: int
    joined_s: float
    ladder: tuple[int, ...] = field(init=False)
    costs: CostTracker = field(init=False)
    evidence: Evidence = field(default_factory=Evidence)
    # What all reports brought lately, skimmed ones too: workers are compared by what they saw over
    # the same time, however many of their reports count for the plan.
    lately: dict[ClassKey, Counts] = field(default_factory=dict, repr=False)
    # Kept where a policy decides from single rounds: policies.base, ``remembers_rounds``.
    history: RoundHistory | None = None
    cost_model: CostModel | None = None
    decision: Decision | None = None
    plan: Plan | None = None
    planned_s: float = 0.0
    next_plan_s: float = float("-inf")
    version: int = 0
    score_maps: tuple[ScoreMap, ...] = ()
    guard: GuardState | None = None
    # The latest timed rounds, and what was predicted of them.
    _foretold: tuple[RoundColumns, Decision | None, CostModel | None, str | None] | None = field(
        default=None, repr=False
    )
    rejected: Counter[str] = field(default_factory=Counter)
    last_sequence: int = 0
    last_report_s: float | None = None
    # When a report was last counted in full: ``absorb``.
    last_full_s: float | None = None
    credit_s: float = MOST_CREDIT_S
    last_plain_s: float = field(init=False)
    left_s: float | None = None
    # The identity's digest where the cost table came from the store; whether that was said.
    stored_table: str = ""
    warm_said: bool = False
    present_requests: int = 0
    rounds: int = 0
    clamps: int = 0
    dropped_rounds: int = 0
    dirty: bool = True

    def __post_init__(self) -> None:
        self.ladder = request_ladder(self.hello.limits.max_running_requests)
        self.costs = CostTracker(self.hello, self.ladder)
        self.last_plain_s = self.joined_s

    def succeeded_by(self, hello: Hello, stream: int, now_s: float) -> WorkerState:
        """The same incarnation with another hello: what was learned no longer applies."""
        younger = WorkerState(hello, stream, now_s)
        for name in _KEPT:
            setattr(younger, name, getattr(self, name))
        return younger

    def requests_at(self, now_s: float) -> int:
        """n of the latest round; 0 once nothing was reported for a while, which is idleness."""
        silent = self.last_report_s is None or now_s - self.last_report_s > IDLE_AFTER_S
        return self.present_requests if self.connected and not silent else 0

    def step_at(self, now_s: float) -> int:
        """The ladder step that serves the present n; the first one when idle."""
        return int(step_of(self.ladder, np.array([self.requests_at(now_s)]))[0])

    def state_at(self, now_s: float) -> str:
        """``gone``, ``busy`` or ``idle``."""
        if not self.connected:
            return "gone"
        return "busy" if self.requests_at(now_s) else "idle"

    @property
    def connected(self) -> bool:
        """Whether a stream of this worker is open."""
        return self.left_s is None

    @property
    def fast(self) -> dict[ClassKey, Counts]:
        """This worker's own fading counts."""
        return self.evidence.fast

    @property
    def pending(self) -> dict[CellKey, Counts]:
        """Counts that wait for the store."""
        return self.evidence.pending

    @property
    def totals(self) -> dict[str, Counts]:
        """Counts since the worker's start, by drafter."""
        return self.evidence.totals

    @property
    def estimates(self) -> dict[str, tuple[tuple[str, ...], Estimates]]:
        """Per drafter its classes and what was believed of them at the latest plan."""
        return self.evidence.estimates

    def skim(self, report: BoundedReport, now_s: float) -> None:
        """Counts a report for the store only, and notes the load: others speak for this worker."""
        self._note(report, now_s)
        self.evidence.keep(report.cells)

    def absorb(self, report: BoundedReport, now_s: float) -> int:
        """Counts a report in full; returns in how many classes acceptance has changed.

        An empty report says idle, unless it is empty because of rejections.
        """
        self._note(report, now_s)
        self.last_full_s = now_s
        rounds, timed = report.rounds, take(report.rounds, report.timed)
        if len(timed):
            drafter = self._only_drafter(report)
            self._foretold = timed, self.decision, self.cost_model, drafter
            self.costs.observe(timed, drafter)
        if self.history is not None:
            self.history.observe(rounds, report.cells)
        return self.evidence.absorb(rounds, report.cells)

    def _only_drafter(self, report: BoundedReport) -> str | None:
        """Whose drafts a report's rounds had: rounds do not name their drafter, outcomes do. Any,
        where nothing was drafted; None where several drafted."""
        known = [traits.name for traits in self.hello.drafters]
        drafted = {cell.drafter for cell, _ in report.cells}
        if len(known) == 1 or (known and not drafted and not report.rounds.draft_us.any()):
            return known[0]
        return drafted.pop() if len(drafted) == 1 else None

    def _note(self, report: BoundedReport, now_s: float) -> None:
        rounds = report.rounds
        if len(rounds) or not report.rejected:
            self.present_requests = int(rounds.requests[-1]) if len(rounds) else 0
        self.rounds += len(rounds)
        self._compare_by(report)
        if (rounds.target_rows == rounds.requests).any():
            self.last_plain_s = now_s
        self.dirty = self.dirty or bool(len(rounds)) or bool(report.cells)

    def _compare_by(self, report: BoundedReport) -> None:
        drafting = int(np.count_nonzero(report.rounds.carried_draft_tokens))
        for counts in self.lately.values():
            counts.fade(drafting)
        for cell, found in report.cells:
            key = cell.drafter, cell.request_class
            known = self.lately.get(key)
            if known is None:
                self.lately[key] = Counts(found.asked.copy(), found.grid.copy())
            else:
                known.add(found)

    def statistics(self, slow: SlowCounts, fleet: SlowCounts) -> tuple[DrafterStatistics, ...]:
        """Estimates of every drafter, kept for those who ask why."""
        return tuple(
            self._statistics(traits, slow, fleet)
            for traits in self.hello.drafters
            if draft_bound(traits, self.hello.limits) > 0
        )

    def _statistics(
        self, traits: DrafterTraits, slow: SlowCounts, fleet: SlowCounts
    ) -> DrafterStatistics:
        positions = draft_bound(traits, self.hello.limits)
        classes, found = self.evidence.estimate(traits, positions, slow, fleet)
        gain = gain_model(found, traits.sparse)
        return DrafterStatistics(traits, gain, found.verified, classes, found)

    def snapshot(self, slow: SlowCounts, fleet: SlowCounts) -> Snapshot:
        """What a policy decides from."""
        return Snapshot(
            self.ladder,
            self.present_requests,
            self.statistics(slow, fleet),
            self.decision,
            rounds=self.history,
        )

    def score_values(self) -> list[tuple[str, str, FloatArray]]:
        """(drafter, class, survival (K, S)); the class "" is the fallback for any other."""
        found = []
        for drafter, (classes, estimates) in self.estimates.items():
            pooled = np.tensordot(estimates.class_share, estimates.survival, axes=1)
            found.append((drafter, "", pooled))
            if len(classes) > 1:
                found += [(drafter, c, s) for c, s in zip(classes, estimates.survival, strict=True)]
        return found

    @property
    def forecast(self) -> Forecast | None:
        """The latest rounds beside their prediction; None where nothing or no rate was foretold.

        Found only when it is asked for, which is far more rarely than reports come.
        """
        if self._foretold is None:
            return None
        rounds, decision, cost, drafter = self._foretold
        if cost is None or decision is None:
            return None
        item = next((each for each in decision.drafters if each.drafter == drafter), None)
        if item is None or not item.rate.any():
            return None
        step = step_of(self.ladder, rounds.requests)
        most = item.accepted.shape[1] - 1
        carried = np.minimum(rounds.carried_draft_tokens, most)
        scale = rounds.requests / np.array(self.ladder)[step]
        rows = np.minimum(rounds.bucket_rows, cost.max_rows)
        drafted = np.minimum(rounds.next_draft_tokens, most)
        predicted_s = (
            cost.target_s[rows]
            + cost.feed_s[item.drafter][rows]
            + cost.draft_s[item.drafter][step, drafted]
            + cost.every_round_s[step]
        )
        measured_us = rounds.target_us + rounds.feed_us + rounds.draft_us + rounds.exposed_host_us
        return Forecast(
            predicted_accepted_tokens=float((item.accepted[step, carried] * scale).mean()),
            realised_accepted_tokens=float(rounds.accepted_tokens.mean()),
            predicted_round_s=float(predicted_s.mean()),
            measured_round_s=float(measured_us.mean()) * 1e-6,
        )
