"""What a plan means for the round at hand: how long to draft, how many drafts to verify. Pure.

Between the plan and the round stand the guard's permission, the probes that keep an "off" from
lasting for ever, and the limits of this worker.
"""

from dataclasses import dataclass
from enum import Enum

from outrider_worker.engine.guard import Permission
from outrider_worker.engine.plans import Plan, clamp


class DraftKind(Enum):
    """Why drafts were made."""

    NONE = "none"
    PLANNED = "planned"
    # The plan says off, and a small share of rounds looks whether that is still right.
    PROBE = "probe"
    # The guard has tripped, and a small share of rounds may prove the drafts' worth.
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class DraftDecision:
    """Length of the drafts made at the end of a round; carried to the next one."""

    tokens: int
    kind: DraftKind
    clamped: bool = False


NO_DRAFTS = DraftDecision(0, DraftKind.NONE)


@dataclass(frozen=True, slots=True)
class VerifyDecision:
    """Drafts verified in a round, summed over requests."""

    tokens: int
    clamped: bool = False


class Share:
    """Says yes to a given share of calls, evenly spread and without chance."""

    def __init__(self) -> None:
        self._phase = 0.0

    def take(self, share: float) -> bool:
        if not share > 0:  # also what is no number
            return False
        self._phase += min(share, 1.0)
        if self._phase < 1.0:
            return False
        self._phase -= 1.0
        return True


class RoundShare(Share):
    """A share of rounds, with one answer for all who ask in the same one."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: bool | None = None

    def open_round(self) -> None:
        self._answer = None

    def take(self, share: float) -> bool:
        if self._answer is None:
            self._answer = super().take(share)
        return self._answer


class Budgeter:
    """Turns plans into one drafter's decisions; remembers only how far the shares have got."""

    def __init__(
        self,
        drafter: str,
        max_draft_tokens: int,
        max_rows: int,
        plain: Share | None = None,
    ) -> None:
        """`plain`: says which rounds are plain for the sake of comparison."""
        self._drafter = drafter
        self._max_draft_tokens = max_draft_tokens
        self._max_rows = max_rows
        self._probes = Share()
        self._plain = plain or Share()

    def next_draft(
        self,
        plan: Plan,
        requests: int,
        permission: Permission,
        probing: bool | None = None,
    ) -> DraftDecision:
        """Stage 2, as the guard permits.

        probing: whether to probe in this round, where the plan says off; None = a share of rounds.
        """
        if permission is Permission.PLAIN:
            return NO_DRAFTS
        planned, clamped = clamp(plan.draft_tokens(self._drafter, requests), self._max_draft_tokens)
        if planned == 0:
            return self._probe(plan, probing)
        if permission is Permission.TRIAL:
            return DraftDecision(planned, DraftKind.TRIAL, clamped)
        if self._plain.take(plan.probe.plain_share):
            return NO_DRAFTS
        return DraftDecision(planned, DraftKind.PLANNED, clamped)

    def verify(
        self,
        plan: Plan,
        requests: int,
        carried: DraftDecision,
        pool_tokens: int,
        asked: int | None = None,
    ) -> VerifyDecision:
        """Stage 1: exactly min(planned, existing) drafts, within the rows of one forward.

        asked: for how many of the requests this drafter was asked, None = for all of them. It gets
        its part of what it would get if all were its own.

        Asking for more than exists is a sparse drafter's normal case and no clamp. A probe's
        drafts are all verified: that is what they were made for.
        """
        room = max(0, self._max_rows - requests)
        if carried.kind is DraftKind.PROBE:
            return VerifyDecision(min(pool_tokens, room))
        part = requests if asked is None else asked
        planned = plan.target_rows(self._drafter, requests, carried.tokens) - requests
        planned = -(-planned * part // requests)
        verify, clamped = clamp(planned, min(part * carried.tokens, room))
        return VerifyDecision(min(verify, pool_tokens), clamped)

    def _probe(self, plan: Plan, probing: bool | None) -> DraftDecision:
        tokens = min(plan.probe.draft_tokens, self._max_draft_tokens)
        if tokens == 0:
            return NO_DRAFTS
        if not (self._probes.take(plan.probe.cohort_share) if probing is None else probing):
            return NO_DRAFTS
        return DraftDecision(tokens, DraftKind.PROBE)
