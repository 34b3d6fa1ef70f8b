"""The worker's Prometheus counters, all derived from round records and news."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from outrider_runtime.metrics import new_registry
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.records import DraftOutcome, RoundRecord
from outrider_worker.engine.types import Failure, Finish, TokenNews

STEM = "outrider_worker"
# Classes beyond these share one name, as they do at the planner.
MOST_CLASSES, OTHER_CLASS = 15, "other"


class WorkerMetrics:
    """Counters fed by the engine thread. drafted, verified and accepted are never mixed."""

    def __init__(self, costs: CostTable, max_draft_tokens: int) -> None:
        self.registry: CollectorRegistry = new_registry()
        self._costs = costs
        self._classes: set[str] = set()

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"{STEM}_{name}", text, labels, registry=self.registry)

        self._rounds = counter("rounds", "Rounds by launch mode.", ["mode"])
        self._emitted = counter("generation_tokens", "Tokens emitted.")
        self._prompt = counter("prompt_tokens", "Prompt tokens prefilled.")
        whose, where = ["drafter", "class"], ["drafter", "position"]
        self._drafted = counter("draft_tokens", "Drafts that could be verified.", whose)
        self._verified = counter("verified_tokens", "Drafts given a row.", whose)
        self._accepted = counter("accepted_tokens", "Drafts accepted.", whose)
        self._relaxed = counter("relaxed_tokens", "Of the accepted: by relaxed acceptance.")
        self._verify_steps = counter("verify_steps", "Request-rounds with a verified draft.", whose)
        self._verified_at = counter(
            "verified_tokens_by_position", "Drafts given a row, by place.", where
        )
        self._accepted_at = counter(
            "accepted_tokens_by_position", "Drafts accepted, by place.", where
        )
        self._rows = counter("target_rows", "Rows of target forwards in rounds.")
        self._seconds = counter("round_seconds", "Where rounds' time went.", ["part"])
        self._budget_s = counter(
            "budget_seconds", "Time of rounds, by the draft length planned.", ["draft_length"]
        )
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
        self._observe_outcomes(record.outcomes)
        if record.requests:
            self._observe_decode(record)

    def _observe_decode(self, record: RoundRecord) -> None:
        self._rounds.labels(record.launch_mode.value).inc()
        self._rows.inc(record.target_rows)
        self._draft_length.observe(record.carried_draft_tokens)
        self._budget_s.labels(str(record.carried_draft_tokens)).inc(record.times.total_s)
        self._step_gap.observe(record.times.total_s)
        context_tokens = record.row_context_tokens / record.target_rows
        self._planned_s.inc(self._costs.target_s(record.bucket_rows, context_tokens))

    def _observe_outcomes(self, outcomes: Iterable[DraftOutcome]) -> None:
        """Sums first: looking a series up costs more than adding, and a round has many requests."""
        groups: dict[tuple[str, str], list[DraftOutcome]] = {}
        for outcome in outcomes:
            labels = (outcome.drafter, self._class(outcome.request_class))
            groups.setdefault(labels, []).append(outcome)
        for labels, group in groups.items():
            self._observe_group(labels, group)

    def _observe_group(self, labels: tuple[str, str], group: Sequence[DraftOutcome]) -> None:
        verified = [outcome.verified for outcome in group]
        accepted = [outcome.accepted for outcome in group]
        self._drafted.labels(*labels).inc(sum(len(outcome.bins) for outcome in group))
        self._verified.labels(*labels).inc(sum(verified))
        self._accepted.labels(*labels).inc(sum(accepted))
        self._verify_steps.labels(*labels).inc(sum(tokens > 0 for tokens in verified))
        for series, lengths in ((self._verified_at, verified), (self._accepted_at, accepted)):
            for position in range(max(lengths)):
                reached = sum(tokens > position for tokens in lengths)
                series.labels(labels[0], str(position)).inc(reached)

    def _class(self, request_class: str) -> str:
        """The label of a class: the first keep their names, so that series stay few."""
        if request_class not in self._classes:
            if len(self._classes) == MOST_CLASSES:
                return OTHER_CLASS
            self._classes.add(request_class)
        return request_class

    def observe_news(self, _round: int, news: Iterable[TokenNews]) -> None:
        """Count the ends among a step's news."""
        for item in news:
            match item.end:
                case Finish(reason):
                    self._requests.labels(reason.value).inc()
                case Failure(code):
                    self._requests.labels(code.value).inc()
