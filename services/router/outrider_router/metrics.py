"""What the router counts, and the record that sees one request from its start to its one outcome.

Every number of a request comes from its record, so metrics, usage and logs cannot disagree.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider_router.tracing import RequestTrace
from outrider_router.types import Round
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger
from outrider_runtime.metrics import LoopHistogram

log = get_logger(__name__)

Outcome = Literal[
    "stop", "length", "cancelled", "invalid", "overloaded", "unavailable", "deadline", "error"
]
OUTCOMES: tuple[Outcome, ...] = (
    *("stop", "length", "cancelled", "invalid"),
    *("overloaded", "unavailable", "deadline", "error"),
)
# Fit for language models: the client library's defaults stop at 10 s and start at 5 ms.
TIME_TO_FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0),
)
INTER_TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04),
    *(0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0),
)
_REQUEST_BUCKETS_S = (*TIME_TO_FIRST_TOKEN_BUCKETS_S, 120.0, 300.0, 600.0)


class RouterMetrics:
    """The router's series in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._make_times()
        self._make_token_counts()
        counter = self._counter
        self.started = counter(
            "requests_started", "Generation requests received, refused ones included."
        )
        self.ended = counter("requests", "Generation requests by their one outcome.", "outcome")
        for outcome in OUTCOMES:
            self.ended.labels(outcome)
        self.ignored_fields = counter(
            "ignored_fields",
            "Request fields accepted without effect; unknown ones count as `other`.",
            "field",
        )
        self.retries = counter(
            "retries", "Choices sent to another worker before their first token."
        )
        self.migrations = counter(
            "migrations", "Choices that went on at another worker with the tokens they had."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"outrider_router_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"outrider_router_{name}", text, buckets=buckets_s, registry=self._registry
        )

    def _make_times(self) -> None:
        histogram = self._histogram
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "From the request to the first token of any of its choices.",
            TIME_TO_FIRST_TOKEN_BUCKETS_S,
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "Per choice: time from the first news to the last, over the tokens after the first.",
            INTER_TOKEN_BUCKETS_S,
        )
        self.round_gap = LoopHistogram(
            "outrider_router_round_gap_seconds",
            "Time between two deliveries to one choice, each of one or more tokens.",
            INTER_TOKEN_BUCKETS_S,
        )
        self._registry.register(self.round_gap)
        self.queue_time = histogram(
            "request_queue_time_seconds",
            "Time that admitted requests stood in line.",
            TIME_TO_FIRST_TOKEN_BUCKETS_S,
        )
        self.request_seconds = histogram(
            "e2e_request_latency_seconds",
            "Whole requests that ended with stop or length.",
            _REQUEST_BUCKETS_S,
        )

    def _make_token_counts(self) -> None:
        counter = self._counter
        self.prompt_tokens = counter(
            "prompt_tokens", "Prompt tokens sent to workers, each prompt counted once."
        )
        self.generation_tokens = counter(
            "generation_tokens", "Tokens kept for clients, of requests that were cut short too."
        )
        self.verify_steps = counter("verify_steps", "Rounds that judged drafts of ended requests.")
        self.verified_tokens = counter("verified_draft_tokens", "Drafts judged in them.")
        self.accepted_tokens = counter(
            "accepted_draft_tokens",
            "Drafts among them that were right; never the token that follows them.",
        )
        self.relaxed_tokens = counter(
            "relaxed_draft_tokens",
            "Of the accepted drafts, those that only relaxed acceptance let through.",
        )

    def watch_load(self, choices: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Export the number of choices in flight and of requests that wait for a place."""
        Gauge(
            "outrider_router_choices_in_flight",
            "Choices admitted and not yet ended.",
            registry=self._registry,
        ).set_function(choices)
        Gauge(
            "outrider_router_requests_waiting",
            "Requests in line for a place.",
            registry=self._registry,
        ).set_function(waiting)


@dataclass
class _ChoiceTimes:
    first_s: float
    last_s: float
    tokens: int


@dataclass
class RequestRecord:
    """One request's life: started at once, ended exactly once.

    Attributes:
        prompt_tokens: of the prompts that went to a worker; 0 for a request that never did.
        steps: rounds that judged drafts, as far as the answer was kept.
    """

    metrics: RouterMetrics
    clock: Clock
    endpoint: str
    started_s: float = 0.0
    prompt_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0
    steps: list[Round] = field(default_factory=list)
    outcome: Outcome | None = None
    time_to_first_token_s: float | None = None
    queued_s: float | None = None
    trace: RequestTrace = field(default_factory=RequestTrace)
    _choices: dict[int, _ChoiceTimes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started_s = self.clock.monotonic_s()
        self.metrics.started.inc()

    @property
    def completion_tokens(self) -> int:
        """Tokens kept for the client so far."""
        return sum(times.tokens for times in self._choices.values())

    @property
    def accepted_draft_tokens(self) -> int:
        """Drafts that held, of those kept for the client so far."""
        return sum(step.accepted_tokens for step in self.steps)

    @property
    def seconds(self) -> float:
        """Time since the request came."""
        return self.clock.monotonic_s() - self.started_s

    def sent(self, prompt_tokens: int) -> None:
        """The request has gone to a worker; until now it waited and was read."""
        self.prompt_tokens = prompt_tokens
        self.queued_s = self.seconds

    def ignored(self, fields: Iterable[str]) -> None:
        """Count fields that have no effect."""
        for name, count in Tally(fields).items():
            self.metrics.ignored_fields.labels(name).inc(count)

    def delivered(self, choice: int, tokens: int) -> None:
        """Count tokens kept for one choice, all of one delivery."""
        if not tokens:
            return
        now_s = self.clock.monotonic_s()
        times = self._choices.get(choice)
        if times is None:
            if self.time_to_first_token_s is None:
                self.time_to_first_token_s = now_s - self.started_s
                self.metrics.time_to_first_token.observe(self.time_to_first_token_s)
            self._choices[choice] = _ChoiceTimes(now_s, now_s, tokens)
            return
        self.metrics.round_gap.observe(now_s - times.last_s)
        times.last_s = now_s
        times.tokens += tokens

    def end(self, outcome: Outcome) -> None:
        """Give the request its outcome; only the first call counts."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self.trace.end(
            outcome,
            {
                "gen_ai.usage.input_tokens": self.prompt_tokens,
                "gen_ai.usage.output_tokens": self.completion_tokens,
                "outrider.spec.accepted_tokens": self.accepted_draft_tokens,
            },
        )
        seconds = self.seconds
        self.metrics.ended.labels(outcome).inc()
        self.metrics.prompt_tokens.inc(self.prompt_tokens)
        self.metrics.generation_tokens.inc(self.completion_tokens)
        self.metrics.verify_steps.inc(len(self.steps))
        self.metrics.verified_tokens.inc(sum(step.verified_tokens for step in self.steps))
        self.metrics.accepted_tokens.inc(self.accepted_draft_tokens)
        self.metrics.relaxed_tokens.inc(sum(step.relaxed_tokens for step in self.steps))
        if outcome in ("stop", "length"):
            self.metrics.request_seconds.observe(seconds)
        for times in self._choices.values():
            if times.tokens > 1:
                per_token_s = (times.last_s - times.first_s) / (times.tokens - 1)
                self.metrics.time_per_output_token.observe(per_token_s)
        log.info(
            "request_ended",
            endpoint=self.endpoint,
            outcome=outcome,
            seconds=round(seconds, 4),
            time_to_first_token_s=self.time_to_first_token_s,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            accepted_draft_tokens=self.accepted_draft_tokens,
            accepted_prediction_tokens=self.accepted_prediction_tokens,
            rejected_prediction_tokens=self.rejected_prediction_tokens,
        )
