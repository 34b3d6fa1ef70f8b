"""The guard: speculation never costs more than a bounded number of tokens against off. Pure.

planner.md "The guard". It sits in the worker, behind every plan, so that it holds whatever the
planner does and when it is gone. Its ledger L counts, in tokens per request, what the rounds lost
against plain decoding:

    L ← max(0, L + dt / (s·T_off(n)) − emitted/n);    L > θ(σ) → off at once
    θ = max(θ_min, 3.45·σ²/δ)

After a trip and a wait, a share of rounds drafts on trial (engine.trial); a gain beyond noise
readmits speculation, otherwise the wait doubles. One round counts for at most 16 tokens: a stalled
process is no losing drafter.
"""

from dataclasses import dataclass
from enum import Enum
from statistics import median

from outrider_worker.engine.plans import GuardThresholds
from outrider_worker.engine.trial import Trial

_SIGMA_START = 0.6
_SIGMA_HALF_LIFE_ROUNDS = 64
_SCALE_EMA_ROUNDS = 16
# One plain round moves s by a third at most: it may have been a hiccup of the machine.
_SCALE_STEP = 1.5
_RENEWAL_ROUNDS = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 60.0
# A trip this soon after a readmission means that the trial was wrong: the wait goes on doubling.
_PROBATION_ROUNDS = 1024
_MOST_TOKENS_PER_ROUND = 16.0


class Permission(Enum):
    """What the next round may do."""

    SPECULATE = "speculate"
    PLAIN = "plain"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class GuardRound:
    """What the ledger needs of a round.

    off_s: T_off(n) = T(n) + c(n). plain_s: the part of elapsed_s that plain decoding would have
    spent too. extra_rows: computed beyond a plain round's, be it for drafts or as padding where
    drafts were hoped for. speculative: drafts had been asked for it at the end of the round before.
    drafted: drafts were made at its end (that costs, also where nothing was verified). trial:
    either was on trial; then requests and emitted_tokens are of those alone that were tried out.
    """

    requests: int
    emitted_tokens: int
    extra_rows: int
    speculative: bool
    drafted: bool
    elapsed_s: float
    plain_s: float
    off_s: float
    trial: bool = False


@dataclass(frozen=True, slots=True)
class GuardSnapshot:
    """Exported state; `lost_tokens` sums the ledger at each trip: the bound that was kept."""

    tripped: bool
    ledger_tokens: float
    threshold_tokens: float
    sigma_tokens: float
    plain_scale_ratio: float
    trips: int
    readmissions: int
    lost_tokens: float


class Guard:
    """The ledger and what follows from it. Time comes in as monotonic seconds.

    A plan may move the thresholds within bounds; only the worker's own setting disables the guard.
    """

    def __init__(self, enabled: bool = True, thresholds: GuardThresholds | None = None) -> None:
        self.thresholds = thresholds or GuardThresholds()
        self._enabled = enabled
        self._ledger = 0.0
        self._variance = _SIGMA_START**2
        self._previous: float | None = None
        self._scale = 1.0
        self._renewals: list[float] | None = None
        self._renewed = False
        self._trips = self._readmissions = 0
        self._lost = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._rounds_on_probation = _PROBATION_ROUNDS
        self._trial_from_s = 0.0
        self._trial: Trial | None = None

    @property
    def threshold_tokens(self) -> float:
        """θ(σ)."""
        thresholds = self.thresholds
        return max(
            thresholds.minimum_tokens, 3.45 * self._variance / thresholds.detectable_loss_ratio
        )

    def permission(self, now_s: float) -> Permission:
        """Decide for the next round; to be asked once per round."""
        if not self._enabled:
            return Permission.SPECULATE
        if self._trial is None:
            return Permission.SPECULATE if self._renewals is None else Permission.PLAIN
        if now_s >= self._trial_from_s and self._trial.take():
            return Permission.TRIAL
        return Permission.PLAIN

    @property
    def tripped(self) -> bool:
        """Speculation is off by the guard, but for trials."""
        return self._trial is not None

    def trial_share(self, now_s: float) -> float:
        """Of rounds that may draft on trial: what requests may earn that are tried out whole."""
        if self._trial is None or now_s < self._trial_from_s:
            return 0.0
        return self._trial.share

    def observe(self, round_: GuardRound, now_s: float) -> None:
        """Book one finished round."""
        if not self._enabled or round_.off_s <= 0 or round_.requests == 0:
            return
        if round_.extra_rows == 0:
            self._learn_scale(round_.plain_s / round_.off_s)
        increment = self._increment(round_)
        self._learn_variance(increment if round_.speculative else None)
        if not round_.speculative and not round_.drafted:
            return
        if self._trial is None:
            if not round_.trial:
                self._observe_regular(increment, now_s)
        elif round_.trial:
            self._observe_trial(self._trial, round_, increment, now_s)

    def snapshot(self) -> GuardSnapshot:
        return GuardSnapshot(
            tripped=self.tripped,
            ledger_tokens=self._ledger,
            threshold_tokens=self.threshold_tokens,
            sigma_tokens=self._variance**0.5,
            plain_scale_ratio=self._scale,
            trips=self._trips,
            readmissions=self._readmissions,
            lost_tokens=self._lost,
        )

    def _increment(self, round_: GuardRound) -> float:
        spent = round_.elapsed_s / (self._scale * round_.off_s)
        increment = spent - round_.emitted_tokens / round_.requests
        return min(increment, _MOST_TOKENS_PER_ROUND)

    def _learn_scale(self, ratio: float) -> None:
        """s follows the machine, so that a slow one is no losing drafter.

        Ordinary plain rounds move it a little; those put in to renew it replace it by their median.
        """
        if self._renewals is None:
            believed = min(max(ratio, self._scale / _SCALE_STEP), self._scale * _SCALE_STEP)
            self._scale += (believed - self._scale) / _SCALE_EMA_ROUNDS
            return
        self._renewals.append(ratio)
        if len(self._renewals) == _RENEWAL_ROUNDS:
            self._scale = min(max(median(self._renewals), 0.05), 20.0)
            self._renewals = None

    def _learn_variance(self, increment: float | None) -> None:
        """σ² from differences of neighbours: a loss that sets in at once must not pass for noise.

        None for a round without speculation: what lies on its two sides is no pair.
        """
        if self._previous is not None and increment is not None:
            keep = 0.5 ** (1 / _SIGMA_HALF_LIFE_ROUNDS)
            half_square = (increment - self._previous) ** 2 / 2
            self._variance = keep * self._variance + (1 - keep) * half_square
        self._previous = increment

    def _observe_regular(self, increment: float, now_s: float) -> None:
        self._rounds_on_probation += 1
        self._ledger = max(0.0, self._ledger + increment)
        if self._ledger <= self.threshold_tokens / 4:
            self._renewed = False
        elif not self._renewed and self._ledger > self.threshold_tokens / 2:
            self._renewed, self._renewals = True, []
        elif self._ledger > self.threshold_tokens and self._renewals is None:
            self._trip(now_s)

    def _trip(self, now_s: float) -> None:
        self._renewed = False
        self._trips += 1
        self._lost += self._ledger
        self._ledger = 0.0
        too_soon = self._rounds_on_probation < _PROBATION_ROUNDS
        self._wait(2 * self._wait_s if too_soon else _FIRST_WAIT_S, now_s)

    def _wait(self, seconds: float, now_s: float) -> None:
        self._wait_s = min(seconds, _LONGEST_WAIT_S)
        self._trial_from_s = now_s + self._wait_s
        self._trial = Trial()

    def _observe_trial(
        self, trial: Trial, round_: GuardRound, increment: float, now_s: float
    ) -> None:
        trial.book(round_.requests, increment, verifying=round_.speculative)
        if not trial.over:
            return
        if not trial.gained:
            self._wait(2 * self._wait_s, now_s)
            return
        self._trial = None
        self._readmissions += 1
        self._rounds_on_probation = 0
        self._variance, self._previous = _SIGMA_START**2, None
