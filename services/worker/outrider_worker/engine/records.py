"""What a step of the engine leaves behind for everyone who counts."""

from dataclasses import dataclass
from enum import Enum

from outrider_worker.engine.types import RequestKey


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """What became of one request's drafts in one round.

    accepted ≤ verified ≤ len(bins) ≤ asked_tokens; a sparse drafter often has no bins at all.
    request and tenant_salt say whose it was; they leave this worker in no report.
    """

    drafter: str
    request_class: str
    context_tokens: int
    asked_tokens: int
    bins: tuple[int, ...]
    verified: int
    accepted: int
    score_map_version: int = 0
    request: RequestKey | None = None
    tenant_salt: bytes = b""


class LaunchMode(Enum):
    AHEAD = "ahead"
    LATE_MASK = "late_mask"
    IN_STEP = "in_step"


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Where a round's time went, in seconds; prefill is in none of them."""

    target_s: float = 0.0
    feed_s: float = 0.0
    draft_s: float = 0.0
    hidden_host_s: float = 0.0
    exposed_host_s: float = 0.0

    @property
    def total_s(self) -> float:
        """What the round took: hidden host time ran beside the device."""
        return self.target_s + self.feed_s + self.draft_s + self.exposed_host_s

    def parts(self) -> dict[str, float]:
        """Seconds by name, for metrics."""
        return {
            "target": self.target_s,
            "feed": self.feed_s,
            "draft": self.draft_s,
            "hidden_host": self.hidden_host_s,
            "exposed_host": self.exposed_host_s,
        }


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One step of the engine, once: metrics, planner reports and logs all derive from this.

    requests is 0 in a step that only prefilled. first_tokens were emitted by prefills: they are
    in no round's emitted_tokens. carried_draft_tokens, next_draft_tokens: of one request at most.
    relaxed_tokens: accepted though the target would have drawn others.
    """

    round: int
    requests: int
    carried_draft_tokens: int
    pool_tokens: int
    target_rows: int
    bucket_rows: int
    prefill_tokens: int
    request_context_tokens: int
    row_context_tokens: int
    times: RoundTimes
    launch_mode: LaunchMode
    emitted_tokens: int
    accepted_tokens: int
    next_draft_tokens: int
    plan_version: int
    outcomes: tuple[DraftOutcome, ...]
    first_tokens: int = 0
    clamped: bool = False
    relaxed_tokens: int = 0

    @property
    def verified_tokens(self) -> int:
        return self.target_rows - self.requests
