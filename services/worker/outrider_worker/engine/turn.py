"""What one step of the engine gathers until its record is written. Plain data."""

from dataclasses import dataclass, field

from outrider_worker.engine.budget import NO_DRAFTS, DraftDecision
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.records import DraftOutcome, LaunchMode, RoundRecord, RoundTimes
from outrider_worker.engine.tables import ForwardTable
from outrider_worker.engine.types import Request, TokenNews


@dataclass(slots=True)
class Turn:
    """One step: the plan it obeys, the requests of its round, and what came of them.

    carried: how the drafts at hand were decided on, at the end of the step before.
    drafted: how the drafts for the next step were.
    """

    plan: Plan
    started_s: float
    carried: DraftDecision
    drafted: DraftDecision = NO_DRAFTS
    requests: list[Request] = field(default_factory=list)
    news: list[TokenNews] = field(default_factory=list)
    outcomes: list[DraftOutcome] = field(default_factory=list)
    pool_tokens: int = 0
    target_rows: int = 0
    request_context_tokens: int = 0
    row_context_tokens: int = 0
    emitted_tokens: int = 0
    accepted_tokens: int = 0
    first_tokens: int = 0
    prefill_tokens: int = 0
    target_s: float = 0.0
    draft_s: float = 0.0
    prefill_s: float = 0.0
    clamped: bool = False

    def note_rows(self, table: ForwardTable) -> None:
        """The rows of the target forward and the context they attend to."""
        self.target_rows = table.rows
        self.row_context_tokens = sum(table.positions) + table.rows
        self.request_context_tokens = sum(request.committed + 1 for request in self.requests)

    def note_draft(self, request: Request, drafter: str, verified: int, accepted: int) -> None:
        """Book what became of a request's drafts, for it and for the planner, from one place."""
        draft = request.draft
        request.totals.add(len(draft), verified, accepted)
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
            )
        )

    def record(self, round_: int, now_s: float) -> RoundRecord:
        """The round's one record. Exposed host time is what is left of the step's time."""
        measured_s = self.target_s + self.draft_s + self.prefill_s
        times = RoundTimes(
            target_s=self.target_s,
            draft_s=self.draft_s,
            exposed_host_s=max(0.0, now_s - self.started_s - measured_s),
        )
        return RoundRecord(
            round=round_,
            requests=len(self.requests),
            carried_draft_tokens=self.carried.tokens,
            pool_tokens=self.pool_tokens,
            target_rows=self.target_rows,
            bucket_rows=self.target_rows,
            prefill_tokens=self.prefill_tokens,
            request_context_tokens=self.request_context_tokens,
            row_context_tokens=self.row_context_tokens,
            times=times,
            launch_mode=LaunchMode.IN_STEP,
            emitted_tokens=self.emitted_tokens,
            accepted_tokens=self.accepted_tokens,
            next_draft_tokens=self.drafted.tokens,
            plan_version=self.plan.version,
            outcomes=tuple(self.outcomes),
            first_tokens=self.first_tokens,
            clamped=self.clamped,
        )
