"""The guard: speculation never costs more than a bounded number of tokens against off. Pure.

planner.md "The guard". It sits in the worker, behind every plan, so that it holds whatever the
planner does and when it is gone. Its ledger L counts, in tokens per request, what the rounds lost
against plain decoding:

    L ← max(0, L + dt / (s·T_off(n)) − emitted/n);    L > θ(σ) → off at once
    θ = max(θ_min, 3.45·σ²/δ)

After a trip and a wait, a share of rounds drafts on trial with a ledger of its own; a gain over 64
request-rounds readmits speculation, otherwise the wait doubles.
"""

from dataclasses import dataclass
from enum import Enum

from outrider_worker.engine.plans import GuardSettings

_SIGMA_START = 0.6
_SIGMA_HALF_LIFE_ROUNDS = 64
_SCALE_EMA_ROUNDS = 16
_RENEWAL_ROUNDS = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 60.0
_TRIAL_REQUEST_ROUNDS = 64
_TRIAL_SHARE = 1 / 32
_TRIAL_BUDGET_RATIO = 0.003
# A single round's measurement is believed only so far: a descheduled process is no losing drafter.
_WORST_ROUND_TOKENS = 16.0


class Permission(Enum):
    """What the next round may do."""

    SPECULATE = "speculate"
    PLAIN = "plain"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class GuardRound:
    """What the ledger needs of a round; `off_s` is T(n) + c(n) from the cost table."""

    requests: int
    emitted_tokens: int
    verified_tokens: int
    # Whether drafts had been asked for it at the end of the round before.
    speculative: bool
    # Whether drafts were made at its end: drafting costs, also where nothing was verified.
    drafted: bool
    elapsed_s: float
    # The part of it that plain decoding would have spent too.
    plain_s: float
    off_s: float


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
    """The ledger and what follows from it. Time comes in as monotonic seconds."""

    def __init__(self, settings: GuardSettings | None = None) -> None:
        self.settings = settings or GuardSettings()
        self._ledger = 0.0
        self._variance = _SIGMA_START**2
        self._previous: float | None = None
        self._scale = 1.0
        self._renewals_left = 0
        self._renewed = False
        self._trips = self._readmissions = 0
        self._lost = 0.0
        self._tripped = False
        self._wait_s = _FIRST_WAIT_S
        self._trial_from_s = 0.0
        self._trial_ledger = 0.0
        self._trial_request_rounds = 0
        self._trial_phase = 0.0
        self._trial_share = _TRIAL_SHARE

    @property
    def threshold_tokens(self) -> float:
        settings = self.settings
        return max(
            settings.minimum_threshold_tokens,
            3.45 * self._variance / settings.detectable_loss_ratio,
        )

    def permission(self, now_s: float) -> Permission:
        """Decide for the next round; to be asked once per round."""
        if not self.settings.enabled:
            return Permission.SPECULATE
        if not self._tripped:
            return Permission.PLAIN if self._renewals_left else Permission.SPECULATE
        if now_s < self._trial_from_s:
            return Permission.PLAIN
        self._trial_phase += self._trial_share
        if self._trial_phase < 1.0:
            return Permission.PLAIN
        self._trial_phase -= 1.0
        return Permission.TRIAL

    def observe(self, round_: GuardRound, trial: bool, now_s: float) -> None:
        """Book one finished round; `trial` if its drafts, verified or made, were on trial."""
        if round_.off_s <= 0 or round_.requests == 0:
            return
        if round_.verified_tokens == 0:
            self._renew_scale(round_)
        increment = self._increment(round_)
        self._update_variance(increment if round_.speculative else None)
        if not round_.speculative and not round_.drafted:
            return
        if trial:
            self._observe_trial(round_, increment, now_s)
        elif not self._tripped:
            self._observe_regular(increment, now_s)

    def snapshot(self) -> GuardSnapshot:
        return GuardSnapshot(
            tripped=self._tripped,
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
        return min(increment, _WORST_ROUND_TOKENS)

    def _renew_scale(self, round_: GuardRound) -> None:
        """A plain round: s follows the machine, so that a slow one is no losing drafter."""
        ratio = min(max(round_.plain_s / round_.off_s, 0.05), 20.0)
        weight = 1 / (_RENEWAL_ROUNDS if self._renewals_left else _SCALE_EMA_ROUNDS)
        self._scale += weight * (ratio - self._scale)
        self._renewals_left = max(0, self._renewals_left - 1)

    def _observe_regular(self, increment: float, now_s: float) -> None:
        self._ledger = max(0.0, self._ledger + increment)
        if self._ledger <= self.threshold_tokens / 4:
            self._renewed = False
        elif not self._renewed and self._ledger > self.threshold_tokens / 2:
            self._renewed, self._renewals_left = True, _RENEWAL_ROUNDS
        elif self._ledger > self.threshold_tokens:
            self._trip(now_s)

    def _update_variance(self, increment: float | None) -> None:
        """σ² from differences of neighbours: a loss that sets in at once must not pass for noise.

        None for a round without speculation: what lies on its two sides is no pair.
        """
        if self._previous is not None and increment is not None:
            keep = 0.5 ** (1 / _SIGMA_HALF_LIFE_ROUNDS)
            half_square = (increment - self._previous) ** 2 / 2
            self._variance = keep * self._variance + (1 - keep) * half_square
        self._previous = increment

    def _trip(self, now_s: float) -> None:
        self._tripped, self._renewed = True, False
        self._trips += 1
        self._lost += self._ledger
        self._ledger = 0.0
        self._start_wait(now_s)

    def _start_wait(self, now_s: float) -> None:
        self._trial_from_s = now_s + self._wait_s
        self._trial_ledger = 0.0
        self._trial_request_rounds = 0
        self._trial_phase = 0.0
        self._trial_share = _TRIAL_SHARE

    def _observe_trial(self, round_: GuardRound, increment: float, now_s: float) -> None:
        self._trial_ledger += increment * round_.requests
        self._trial_request_rounds += round_.requests
        mean_loss = self._trial_ledger / self._trial_request_rounds
        # The dearer a trial round turns out, the fewer there are: together at most 0.3 %.
        self._trial_share = min(_TRIAL_SHARE, _TRIAL_BUDGET_RATIO / max(mean_loss, 1e-6))
        if self._trial_request_rounds < _TRIAL_REQUEST_ROUNDS:
            return
        if self._trial_ledger < 0:
            self._readmit()
        else:
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            self._start_wait(now_s)

    def _readmit(self) -> None:
        self._tripped = False
        self._readmissions += 1
        self._wait_s = _FIRST_WAIT_S
        self._variance, self._previous = _SIGMA_START**2, None
