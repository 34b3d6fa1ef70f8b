"""The worker's part of traces: a span for each request that a router traces.

Begun on the event loop, ended on the engine's thread; steps are no spans, their totals are
attributes of the request's.
"""

from outrider_runtime.tracing import Span, Tracer
from outrider_worker.engine.types import Failure, RequestKey, TokenNews


class RequestTraces:
    """Spans of the requests that are here."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: dict[RequestKey, Span] = {}

    def begin(self, key: RequestKey, traceparent: str, prompt_tokens: int) -> None:
        """A request has come; without a traceparent nobody traces it."""
        if not traceparent:
            return
        span = self._tracer.span("engine.generate", traceparent, "server")
        span.set({"gen_ai.usage.input_tokens": prompt_tokens})
        self._spans[key] = span

    def end(self, news: TokenNews) -> None:
        """A request's last news."""
        span = self._spans.pop(news.key, None)
        if span is None:
            return
        totals = news.totals
        span.set(
            {
                "gen_ai.usage.output_tokens": news.emitted_tokens,
                "outrider.spec.verify_steps": totals.verify_steps if totals else 0,
                "outrider.spec.drafted_tokens": totals.drafted_tokens if totals else 0,
                "outrider.spec.accepted_tokens": totals.accepted_tokens if totals else 0,
            }
        )
        span.end(news.end.code.value if isinstance(news.end, Failure) else "")

    def drop(self, owner: str) -> None:
        """A router is gone, and with it its requests."""
        for key in [key for key in list(self._spans) if key.owner == owner]:
            self._spans.pop(key).end("the router is gone")
