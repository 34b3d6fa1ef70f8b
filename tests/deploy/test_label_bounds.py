"""Whatever clients, keys and workers call things, the number of series stays as it was."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from outrider_planner.core.bounds import REASONS
from outrider_planner.core.events import PlannerConfig
from outrider_planner.service import PlannerService
from outrider_planner.store.errands import Outcome
from outrider_planner.store.memory import MemoryStore
from outrider_router.openai.fields import IGNORED, OTHER_FIELD
from outrider_runtime.clock import VirtualClock
from outrider_worker.engine.costs import CostCurve, CostTable, Timing
from outrider_worker.engine.records import DraftOutcome, LaunchMode, RoundRecord, RoundTimes
from outrider_worker.metrics import MOST_CLASSES, OTHER_CLASS, WorkerMetrics
from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import running_router
from tests.unit.planner.builders import make_cell, make_hello, make_report, make_rounds

MAX_DRAFT_TOKENS = 4
# What has broken exporters: quotes, line ends, other alphabets, great length.
HOSTILE = ['x"} 1\n', "ключ", "{" * 500, *(f"name-{number}" for number in range(20))]

Series = tuple[str, tuple[tuple[str, str], ...]]


def series(registry: CollectorRegistry) -> set[Series]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in registry.collect()
        for sample in family.samples
    }


def values(found: Iterable[Series], label: str) -> set[str]:
    return {value for _, labels in found for name, value in labels if name == label}


async def test_clients_cannot_add_series_to_the_router() -> None:
    good: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with FakeWorker(script=saying("words", 2)) as worker, running_router(worker) as router:
        assert (await router.http.post("/v1/chat/completions", json=good)).status_code == 200
        before = series(router.state.series)
        for name in HOSTILE[:8]:
            key = {"authorization": f"Bearer {name.encode().hex()}", "x-request-id": "1"}
            wrong: list[Mapping[str, Any]] = [
                {**good, "model": name},
                {**good, name: 1, "user": name, "metadata": {name: name}},
                {**good, "tools": name},
            ]
            for body in wrong:
                await router.http.post("/v1/chat/completions", json=body, headers=key)
        added = series(router.state.series) - before
    assert {name for name, _ in added} == {"outrider_router_ignored_fields_total"}
    assert values(added, "field") == {"user", "metadata", OTHER_FIELD}
    assert values(added, "field") <= IGNORED | {OTHER_FIELD}


async def test_workers_cannot_add_series_to_the_planner_beyond_their_life() -> None:
    clock = VirtualClock()
    service = PlannerService(PlannerConfig(), MemoryStore(clock.monotonic_s), clock, "planner-1")
    service.start()
    before = series(service.metrics.registry)
    for number in range(8):
        session = service.open(make_hello(incarnation=f"worker-{number}"))
        for sequence, name in enumerate(HOSTILE, 1):
            cell = make_cell(drafter=name, request_class=name)
            service.report(session, make_report(sequence, make_rounds(1), cell))
        assert await session.take(5.0) is not None
        service.refresh_metrics()
        during = series(service.metrics.registry)
        service.close(session)
    assert values(during, "drafter") == {"ngram"}
    assert values(during, "reason") <= {*REASONS, "failed"}
    assert "unknown_drafter" in values(during, "reason")
    for _ in range(int(PlannerConfig().retention_s) + 5):
        await clock.advance(1.0)
        await asyncio.sleep(0)
    service.refresh_metrics()
    left = series(service.metrics.registry) - before
    await service.stop()
    assert {label for _, labels in left for label, _ in labels} == {"reason", "result"}
    assert values(left, "result") <= {outcome.value for outcome in Outcome}


def record(*outcomes: DraftOutcome) -> RoundRecord:
    return RoundRecord(
        round=1,
        requests=len(outcomes),
        carried_draft_tokens=MAX_DRAFT_TOKENS,
        pool_tokens=0,
        target_rows=len(outcomes),
        bucket_rows=len(outcomes),
        prefill_tokens=0,
        request_context_tokens=8,
        row_context_tokens=8,
        times=RoundTimes(target_s=0.25),
        launch_mode=LaunchMode.AHEAD,
        emitted_tokens=1,
        accepted_tokens=0,
        next_draft_tokens=0,
        plan_version=1,
        outcomes=outcomes,
    )


def test_keys_cannot_add_series_to_a_worker_beyond_a_number_of_classes() -> None:
    curve = CostCurve(0, (1,), (Timing(0.01, 0.0, 1),))
    metrics = WorkerMetrics(CostTable((curve,)), MAX_DRAFT_TOKENS)
    for name in HOSTILE:
        metrics.observe_round(record(DraftOutcome("ngram", name, 8, 4, (0,) * 4, 4, 2)))
    found = series(metrics.registry)
    classes = values(found, "class")
    assert len(classes) == MOST_CLASSES + 1
    assert classes == {*HOSTILE[:MOST_CLASSES], OTHER_CLASS}
    assert values(found, "position") == {"0", "1", "2", "3"}
    assert values(found, "draft_length") == {"4"}
