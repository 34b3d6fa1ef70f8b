"""Traces, where somebody asked for them: spans that hang together over services.

Off unless `OUTRIDER_TRACE_ENDPOINT` names a collector (OTLP over gRPC); only then OpenTelemetry is
imported, which the extra `observe` installs. Context travels as W3C `traceparent`. What was said in
prompts or answers is in no span.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from outrider_runtime.settings import ConfigurationError, ServiceSettings

Value = str | int | float | bool
# Also how long a process that ends waits for a collector that does not answer.
_EXPORT_LIMIT_S = 2


class Span(Protocol):
    """One piece of work in a trace."""

    @property
    def traceparent(self) -> str:
        """W3C context of this span, for what is done on its behalf; empty where none is kept."""
        ...

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""
        ...

    def end(self, error: str = "") -> None:
        """The work is over; a second call does nothing."""
        ...


class Tracer(Protocol):
    """Makes spans."""

    def span(self, name: str, parent: str = "", kind: str = "internal") -> Span:
        """Begin one; `parent` is a traceparent, `kind` is internal, server or client."""
        ...

    def close(self) -> None:
        """Send what is still kept."""
        ...


class _NoSpan:
    traceparent = ""

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Kept nowhere."""

    def end(self, error: str = "") -> None:
        """Kept nowhere."""


class NoTracer:
    """Keeps nothing."""

    _span = _NoSpan()

    def span(self, name: str, parent: str = "", kind: str = "internal") -> Span:
        """The one span that is none."""
        return self._span

    def close(self) -> None:
        """Nothing is kept."""


class _OtelSpan:
    def __init__(self, span: Any, traceparent: str) -> None:
        self._span = span
        self.traceparent = traceparent

    def set(self, attributes: Mapping[str, Value]) -> None:
        """See `Span`."""
        self._span.set_attributes(dict(attributes))

    def end(self, error: str = "") -> None:
        """See `Span`."""
        if not self._span.is_recording():
            return
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class OtelTracer:
    """Spans of OpenTelemetry.

    Args:
        provider: an `opentelemetry.sdk.trace.TracerProvider`.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("outrider")
        self._propagator = TraceContextTextMapPropagator()

    def span(self, name: str, parent: str = "", kind: str = "internal") -> Span:
        """See `Tracer`."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        context = self._propagator.extract({"traceparent": parent}) if parent else None
        span = self._tracer.start_span(name, context, SpanKind[kind.upper()])
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return _OtelSpan(span, carrier.get("traceparent", ""))

    def close(self) -> None:
        """See `Tracer`."""
        self._provider.shutdown()


def tracer_for(service: str, settings: ServiceSettings) -> Tracer:
    """What the settings ask for.

    Raises:
        ConfigurationError: traces are asked for and OpenTelemetry is not installed.
    """
    if not settings.trace_endpoint:
        return NoTracer()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        text = f"OUTRIDER_TRACE_ENDPOINT needs the extra `observe` ({error.name} is missing)"
        raise ConfigurationError(text) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"outrider-{service}"}))
    exporter = OTLPSpanExporter(settings.trace_endpoint, timeout=_EXPORT_LIMIT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtelTracer(provider)
