"""The worker's spans: one for each traced request, ended with its last news or its router."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider_runtime.tracing import OtelTracer
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    RequestKey,
    TokenNews,
)
from outrider_worker.rpc.traces import RequestTraces

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_has_one_span_under_its_routers() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    traces = RequestTraces(OtelTracer(provider))
    good, bad, lost, plain = (RequestKey("router", name) for name in ("a", "b", "c", "d"))
    for key in (good, bad, lost):
        traces.begin(key, PARENT, prompt_tokens=7)
    traces.begin(plain, "", prompt_tokens=7)
    traces.end(TokenNews(good, (), end=Finish(FinishReason.LENGTH), emitted_tokens=5))
    traces.end(TokenNews(bad, (), end=Failure(FailureCode.INTERNAL, "broken")))
    traces.end(TokenNews(plain, (), end=Finish(FinishReason.LENGTH)))
    traces.drop("another router")
    assert len(kept.get_finished_spans()) == 2
    traces.drop("router")
    spans = kept.get_finished_spans()
    assert [span.status.is_ok for span in spans] == [True, False, False]
    assert {span.parent.span_id for span in spans if span.parent} == {0xB7AD6B7169203331}
    assert spans[0].attributes is not None
    assert spans[0].attributes["gen_ai.usage.output_tokens"] == 5
    traces.end(TokenNews(lost, (), end=Finish(FinishReason.LENGTH)))
    assert len(kept.get_finished_spans()) == 3
