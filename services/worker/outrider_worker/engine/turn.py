"""What one step of the engine gathers until its record is written. Plain data.

A step may be read one step after it was launched; its turn travels with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_worker.engine.budget import DraftDecision, DraftKind
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.records import DraftOutcome, LaunchMode, RoundRecord, RoundTimes
from outrider_worker.engine.types import Draft, Request
from outrider_worker.speculate.drafter import PREDICTED


@dataclass(slots=True)
class Turn:
    """One step: the plan it obeys, the requests of its round, and what came of them.

    carried: how the drafts at hand were decided on, a step before, by drafter.
    drafted: how the drafts for the next step are; drafters that draft nothing are in neither.
    on_host: whose drafts for the next step are the host's work.
    tried_requests, tried_tokens: those of the round that draft on trial, and what they got.
    served_requests: those of the round that were still there when it was read.
    times: of the device, then (once all is read) of the host too.
    """

    plan: Plan
    started_s: float
    carried: Mapping[str, DraftDecision] = field(default_factory=dict)
    drafted: dict[str, DraftDecision] = field(default_factory=dict)
    carried_on_host: frozenset[str] = frozenset()
    on_host: frozenset[str] = frozenset()
    mode: LaunchMode = LaunchMode.IN_STEP
    requests: list[Request] = field(default_factory=list)
    outcomes: list[DraftOutcome] = field(default_factory=list)
    served_requests: int = 0
    tried_requests: int = 0
    tried_tokens: int = 0
    pool_tokens: int = 0
    target_rows: int = 0
    bucket_rows: int = 0
    request_context_tokens: int = 0
    row_context_tokens: int = 0
    emitted_tokens: int = 0
    accepted_tokens: int = 0
    relaxed_tokens: int = 0
    first_tokens: int = 0
    prefill_tokens: int = 0
    target_s: float = 0.0
    feed_s: float = 0.0
    draft_s: float = 0.0
    prefill_s: float = 0.0
    waited_s: float = 0.0
    clamped: bool = False

    @property
    def worked(self) -> bool:
        """Whether there is anything to write down."""
        return bool(self.requests or self.prefill_tokens or self.outcomes)

    def note_rows(self, first_position: int, rows: int) -> None:
        """A request's rows of the target forward, and the context they attend to."""
        self.target_rows += rows
        self.request_context_tokens += first_position + 1
        self.row_context_tokens += sum(range(first_position + 1, first_position + rows + 1))

    @property
    def on_trial(self) -> bool:
        """Drafts were judged or made to prove their worth to the guard."""
        decisions = (*self.carried.values(), *self.drafted.values())
        return any(decision.kind is DraftKind.TRIAL for decision in decisions)

    def note_draft(self, request: Request, draft: Draft, verified: int, accepted: int) -> None:
        """Book what became of a request's drafts, for it and for the planner, from one place."""
        drafter = request.drafter
        request.totals.add(len(draft), verified, accepted, predicted=drafter == PREDICTED)
        if draft.asked_tokens == 0:
            return
        score_map = self.plan.score_maps.get((drafter, request.spec.request_class))
        self.outcomes.append(
            DraftOutcome(
                drafter=drafter,
                request_class=request.spec.request_class,
                context_tokens=request.committed + 1,
                asked_tokens=draft.asked_tokens,
                bins=draft.bins,
                verified=verified,
                accepted=accepted,
                score_map_version=score_map.version if score_map else 0,
                request=request.spec.key,
                tenant_salt=request.spec.tenant_salt,
            )
        )

    def round_times(self, now_s: float) -> RoundTimes:
        """Where the turn's time went.

        Host time counts as exposed as far as the device had nothing to do meanwhile; the rest of
        the time in which the host did not wait was hidden behind the device.
        """
        elapsed_s = max(0.0, now_s - self.started_s)
        device_s = self.target_s + self.feed_s + self.draft_s + self.prefill_s
        exposed_s = max(0.0, elapsed_s - device_s)
        hidden_s = 0.0
        if self.mode is not LaunchMode.IN_STEP:
            hidden_s = max(0.0, elapsed_s - self.waited_s - exposed_s)
        return RoundTimes(
            target_s=self.target_s,
            feed_s=self.feed_s,
            draft_s=self.draft_s,
            hidden_host_s=hidden_s,
            exposed_host_s=exposed_s,
        )

    def record(self, round_: int, now_s: float) -> RoundRecord:
        """The round's one record."""
        return RoundRecord(
            round=round_,
            requests=len(self.requests),
            carried_draft_tokens=_longest(self.carried),
            pool_tokens=self.pool_tokens,
            target_rows=self.target_rows,
            bucket_rows=self.bucket_rows,
            prefill_tokens=self.prefill_tokens,
            request_context_tokens=self.request_context_tokens,
            row_context_tokens=self.row_context_tokens,
            times=self.round_times(now_s),
            launch_mode=self.mode,
            emitted_tokens=self.emitted_tokens,
            accepted_tokens=self.accepted_tokens,
            next_draft_tokens=_longest(self.drafted),
            plan_version=self.plan.version,
            outcomes=tuple(self.outcomes),
            first_tokens=self.first_tokens,
            clamped=self.clamped,
            relaxed_tokens=self.relaxed_tokens,
        )


def _longest(decisions: Mapping[str, DraftDecision]) -> int:
    """Drafts of one request at most, whoever drafts."""
    return max((decision.tokens for decision in decisions.values()), default=0)
