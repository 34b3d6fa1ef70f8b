"""Traces from the request to the worker, in memory instead of a collector."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from outrider.worker.v1 import worker_pb2
from outrider_runtime.tracing import OtelTracer
from tests.support.fake_worker import FakeWorker, Script, resuming, saying
from tests.support.router_stack import running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "a-word-of-the-prompt"
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}]}
CHAT = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def sent_in_order(submitted: list[Any]) -> list[Any]:
    return sorted(submitted, key=lambda submit: len(submit.resumed_ids))


async def test_a_trace_follows_the_request_to_each_worker_it_needs() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))

    def script(submit: Any) -> Any:
        fatal = {} if submit.resumed_ids else {"die_after": 3}
        return resuming("abcdefgh", 1, gap_s=0.02, **fatal)(submit)

    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        running_router(first, second) as router,
    ):
        workers = router.state.registry.workers.values()
        await until(lambda: not any(w.trouble for w in workers), 5, "both ready")
        router.state.tracer = OtelTracer(provider)
        response = await router.http.post(CHAT, json=GOOD, headers={"traceparent": PARENT})
        assert response.json()["choices"][0]["message"]["content"] == "abcdefgh"
        submitted = [*first.submitted, *second.submitted]
        spans = kept.get_finished_spans()
        attempts = [span for span in spans if span.name == "worker.generate"]
        (whole,) = [span for span in spans if span.name == "chat"]
        assert whole.parent is not None
        assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
        assert {span.parent.span_id for span in attempts if span.parent} == {whole.context.span_id}
        sent = {submit.traceparent.split("-")[2] for submit in submitted}
        assert sent == {f"{span.context.span_id:016x}" for span in attempts}
        assert len(attempts) == 2
        tokens = [(span.attributes or {})["outrider.resumed_tokens"] for span in attempts]
        assert tokens == [len(submit.resumed_ids) for submit in sent_in_order(submitted)]
        assert whole.attributes is not None
        used = response.json()["usage"]["completion_tokens"]
        assert whole.attributes["gen_ai.usage.output_tokens"] == used
        assert whole.attributes["gen_ai.request.model"] == "tiny"
        assert SECRET not in repr([dict(span.attributes or {}) for span in spans])


async def test_without_a_collector_nothing_is_traced_or_sent() -> None:
    async with FakeWorker(script=saying("ok")) as worker, running_router(worker) as router:
        headers = {"traceparent": PARENT}
        assert (await router.http.post(CHAT, json=GOOD, headers=headers)).status_code == 200
        assert [submit.traceparent for submit in worker.submitted] == [""]


async def test_what_a_client_got_wrong_is_no_error_of_the_server() -> None:
    """By OpenTelemetry's conventions the status of a server's span is unset for a 4xx."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    broken = Script([], failure=worker_pb2.FAILURE_CODE_INTERNAL)
    async with FakeWorker(script=broken) as worker, running_router(worker) as router:
        router.state.tracer = OtelTracer(provider)
        wrong = await router.http.post(CHAT, json=GOOD | {"temperature": 9})
        failed = await router.http.post(CHAT, json=GOOD)
    assert (wrong.status_code, failed.status_code) == (400, 500)
    first, second = [span for span in kept.get_finished_spans() if span.name == "chat"]
    assert dict(first.attributes or {})["outrider.outcome"] == "invalid"
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR
