"""One request's trace: a span for the request, and under it one for each attempt of each choice.

Names and attributes follow OpenTelemetry's conventions for generative AI where they have one, and
begin with `outrider.` elsewhere. Prompts and answers are in none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_runtime.tracing import NoTracer, Span, Tracer, Value

# What the router or a worker did wrong. By the conventions, a server leaves the status of requests
# that the client got wrong, or ended, unset.
_FAULTS = ("error", "unavailable")
_OPERATIONS = {"chat.completions": "chat", "completions": "text_completion"}


@dataclass
class RequestTrace:
    """Spans of one request; without a tracer none are kept.

    `parent` is the `traceparent` that the client sent, empty without.
    """

    tracer: Tracer = field(default_factory=NoTracer)
    endpoint: str = ""
    parent: str = ""
    _span: Span = field(init=False)

    def __post_init__(self) -> None:
        operation = _OPERATIONS.get(self.endpoint, self.endpoint)
        self._span = self.tracer.span(operation, self.parent, "server")
        self._span.set({"gen_ai.operation.name": operation, "gen_ai.provider.name": "outrider"})

    def attempt(self, model: str, worker: str, choice: int, resumed_tokens: int) -> Span:
        """A choice goes to a worker."""
        self._span.set({"gen_ai.request.model": model})
        span = self.tracer.span("worker.generate", self._span.traceparent, "client")
        span.set(
            {
                "outrider.worker": worker,
                "outrider.choice": choice,
                "outrider.resumed_tokens": resumed_tokens,
            }
        )
        return span

    def end(self, outcome: str, attributes: Mapping[str, Value]) -> None:
        """The request has its outcome."""
        self._span.set({"outrider.outcome": outcome, **attributes})
        self._span.end(outcome if outcome in _FAULTS else "")
