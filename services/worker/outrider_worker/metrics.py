"""The worker's Prometheus counters, all derived from round records and news."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from outrider_runtime.metrics import new_registry
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.records import DraftOutcome, RoundRecord
from outrider_worker.engine.types import Failure, Finish, TokenNews

STEM = "outrider_worker"


class WorkerMetrics:
    """Counters fed by the engine thread. drafted, verified and accepted are never mixed."""

    def __init__(self, costs: CostTable, max_draft_tokens: int) -> None:
        self.registry: CollectorRegistry = new_registry()
        self._costs = costs

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"{STEM}_{name}", text, labels, registry=self.registry)

        self._rounds = counter("rounds", "Rounds by launch mode.", ["mode"])
        self._emitted = counter("generation_tokens", "Tokens emitted.")
        self._prompt = counter("prompt_tokens", "Prompt tokens prefilled.")
        self._drafted = counter("draft_tokens", "Drafts that could be verified.", ["drafter"])
        self._verified = counter("verified_tokens", "Drafts given a row.", ["drafter"])
        self._accepted = counter("accepted_tokens", "Drafts accepted.", ["drafter"])
        self._relaxed = counter("relaxed_tokens", "Of the accepted: by relaxed acceptance.")
        self._verify_steps = counter(
            "verify_steps", "Request-rounds with a verified draft.", ["drafter"]
        )
        self._by_position = counter(
            "accepted_tokens_by_position", "Drafts accepted, by place.", ["drafter", "position"]
        )
        self._rows = counter("target_rows", "Rows of target forwards in rounds.")
        self._seconds = counter("round_seconds", "Where rounds' time went.", ["part"])
        self._planned_s = counter("planned_target_seconds", "Target time by the cost table.")
        self._clamps = counter("plan_clamps", "Plan values beyond this worker's limits.")
        self._requests = counter("requests", "Requests ended, by outcome.", ["outcome"])
        self._draft_length = Histogram(
            f"{STEM}_draft_length",
            "Planned draft length by round.",
            buckets=range(max_draft_tokens + 1),
            registry=self.registry,
        )
        self._step_gap = Histogram(
            f"{STEM}_round_duration_seconds",
            "Time of one round.",
            buckets=(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0),
            registry=self.registry,
        )

    def observe_round(self, record: RoundRecord) -> None:
        """Count one step of the engine."""
        self._emitted.inc(record.emitted_tokens + record.first_tokens)
        self._prompt.inc(record.prefill_tokens)
        self._clamps.inc(record.clamped)
        self._relaxed.inc(record.relaxed_tokens)
        for part, seconds in record.times.parts().items():
            self._seconds.labels(part).inc(seconds)
        for outcome in record.outcomes:
            self._observe_outcome(outcome)
        if record.requests:
            self._observe_decode(record)

    def _observe_decode(self, record: RoundRecord) -> None:
        self._rounds.labels(record.launch_mode.value).inc()
        self._rows.inc(record.target_rows)
        self._draft_length.observe(record.carried_draft_tokens)
        self._step_gap.observe(record.times.total_s)
        context_tokens = record.row_context_tokens / record.target_rows
        self._planned_s.inc(self._costs.target_s(record.bucket_rows, context_tokens))

    def _observe_outcome(self, outcome: DraftOutcome) -> None:
        self._drafted.labels(outcome.drafter).inc(len(outcome.bins))
        self._verified.labels(outcome.drafter).inc(outcome.verified)
        self._accepted.labels(outcome.drafter).inc(outcome.accepted)
        self._verify_steps.labels(outcome.drafter).inc(outcome.verified > 0)
        for position in range(outcome.accepted):
            self._by_position.labels(outcome.drafter, str(position)).inc()

    def observe_news(self, _round: int, news: Iterable[TokenNews]) -> None:
        """Count the ends among a step's news."""
        for item in news:
            match item.end:
                case Finish(reason):
                    self._requests.labels(reason.value).inc()
                case Failure(code):
                    self._requests.labels(code.value).inc()
