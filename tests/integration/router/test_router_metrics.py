"""The metrics page: what is always there, and the same under vLLM's names."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import RunningRouter, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def samples_of(router: RunningRouter) -> dict[str, float]:
    """Values by name and labels, bucket bounds and worker addresses left out."""
    text = (await router.http.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        f"{s.name}{sorted(s.labels.items())}" if s.labels else s.name: s.value
        for family in families
        for s in family.samples
        if "le" not in s.labels and "worker" not in s.labels
    }


async def test_the_alias_shows_the_same_numbers_under_the_other_names() -> None:
    async with (
        FakeWorker(script=saying("some words", 3), running_requests=2) as worker,
        running_router(worker, metrics_alias="vllm") as router,
    ):
        for _ in range(3):
            assert (await router.http.post("/v1/chat/completions", json=GOOD)).status_code == 200
        found = await samples_of(router)
        labels = [("engine", "0"), ("model_name", "tiny")]
        for theirs, ours in (
            ("prompt_tokens_total", "prompt_tokens_total"),
            ("generation_tokens_total", "generation_tokens_total"),
            ("time_to_first_token_seconds_count", "time_to_first_token_seconds_count"),
            ("inter_token_latency_seconds_sum", "round_gap_seconds_sum"),
            ("e2e_request_latency_seconds_count", "e2e_request_latency_seconds_count"),
        ):
            assert found[f"vllm:{theirs}{labels}"] == found[f"outrider_router_{ours}"] > 0
        stopped = [("engine", "0"), ("finished_reason", "stop"), ("model_name", "tiny")]
        assert found[f"vllm:request_success_total{stopped}"] == 3
        assert found[f"vllm:num_requests_running{labels}"] == 2
        assert found[f"vllm:kv_cache_usage_perc{labels}"] == 0


async def test_a_fresh_router_has_every_series_and_no_other_names() -> None:
    """G06: no NaN before anything has happened."""
    async with FakeWorker() as worker, running_router(worker) as router:
        found = await samples_of(router)
        assert all(name.startswith("outrider_router_") for name in found)
        assert all(value == value for value in found.values())
        for name in ("migrations_total", "retries_total", "requests_waiting", "verify_steps_total"):
            assert found[f"outrider_router_{name}"] == 0
