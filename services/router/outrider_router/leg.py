"""One choice on its way: what came of it over all its attempts, and the worker it is at.

Knows neither the other choices of its request nor where workers are found.
"""

from dataclasses import dataclass, field, replace

from outrider_router.routing.fleet import Hold
from outrider_router.routing.policy import Demand
from outrider_router.types import Submission, Totals, Update
from outrider_runtime.tracing import Span

_INNOCENT_TOKENS = 16


@dataclass
class Leg:
    """One choice: what came of it so far, and where it is.

    `began_at`: how many ids had come when its present attempt began. `lost_at`: how many when its
    worker was last lost; another loss soon after is not forgiven, because the choice itself may be
    what kills workers.
    """

    submission: Submission
    received: list[int] = field(default_factory=list)
    totals: Totals | None = None
    totals_before: Totals | None = None
    attempts: int = 0
    began_at: int = 0
    lost_at: int | None = None
    avoided: set[str] = field(default_factory=set)
    sent: Submission | None = None
    hold: Hold | None = None
    span: Span | None = None

    @property
    def finished_by_length(self) -> bool:
        """Every token that it may have is there."""
        return len(self.received) >= self.submission.sampling.max_tokens

    @property
    def is_suspect(self) -> bool:
        """A worker was lost with it at about this place before.

        About, since what a dying worker said last is lost with it: a choice that kills at one token
        is seen to die some tokens earlier.
        """
        return self.lost_at is not None and len(self.received) - self.lost_at < _INNOCENT_TOKENS

    @property
    def demand(self) -> Demand:
        """What it takes of a worker."""
        tokens = len(self.submission.prompt_ids) + self.submission.sampling.max_tokens
        return Demand(1, tokens)

    def leave(self) -> None:
        """It is no longer at the worker it was sent to, which drops it if it has not ended it."""
        if self.span is not None:
            self.span.end()
        if self.hold is not None and self.sent is not None:
            self.hold.release()
            self.hold.worker.client.drop(self.sent)

    def resumed(self, deadline_ms: int, traceparent: str) -> Submission:
        """What is sent for the next attempt."""
        self.attempts += 1
        self.began_at = len(self.received)
        self.totals_before = self.totals
        name = self.submission.request_id
        return replace(
            self.submission,
            request_id=name if self.attempts == 1 else f"{name}~{self.attempts}",
            deadline_ms=deadline_ms,
            resumed_ids=tuple(self.received),
            traceparent=traceparent,
        )

    def absorb(self, update: Update) -> Update:
        """The update as one of the whole choice instead of its latest attempt."""
        self.received += update.token_ids
        if update.token_ids:
            self.avoided.clear()
        if self.attempts == 1:
            self.totals = update.totals or self.totals
            return update
        if update.totals is not None:
            before = self.totals_before
            self.totals = before.plus(update.totals) if before else update.totals
        # A prompt that was computed once already cost what it cost.
        cached = 0 if self.began_at else update.cached_prompt_tokens
        return update._replace(totals=self.totals, cached_prompt_tokens=cached)
