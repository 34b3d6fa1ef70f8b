"""What is lost, and what goes on: each container in turn under load."""

import asyncio

import httpx2
import pytest
from openai import APIError, AsyncOpenAI

from tests.deploy.containers.stack import ContainerStack
from tests.deploy.containers.streams import ASKED, ENDLESS, TOKENS, on_their_way
from tests.support.chat import QUESTION, ask, stream_all

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

SCRAPE_S = 5.0


@pytest.mark.parametrize("service", ["worker-1", "worker-2", "planner", "valkey", "prometheus"])
async def test_a_crash_changes_no_stream(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str], service: str
) -> None:
    """Z08: the container comes back by itself, and nobody reads of it."""
    container = stack.containers(service)[0]
    moved = stack.metric("outrider_router_migrations_total")
    async with on_their_way(openai) as answers:
        await asyncio.to_thread(stack.crash, container)
        assert await answers == undisturbed
    if service.startswith("worker"):
        assert stack.metric("outrider_router_migrations_total") > moved
    await asyncio.to_thread(stack.wait_healthy, container)
    await asyncio.to_thread(stack.wait_ready_workers, 2)


async def test_a_crashed_router_ends_its_streams_and_serves_again(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    async with on_their_way(openai) as answers:
        await asyncio.to_thread(stack.crash, stack.only("router"))
        with pytest.raises((APIError, httpx2.HTTPError)):
            await asyncio.wait_for(answers, 30)
    await asyncio.to_thread(stack.wait_healthy, stack.only("router"))
    await asyncio.to_thread(stack.wait_ready_workers, 2)
    # Nothing of the lost requests is still computed.
    await asyncio.to_thread(stack.wait_query, "sum(outrider_worker_requests_running)", [0.0])
    assert await stream_all(openai, ASKED, TOKENS, **ENDLESS) == undisturbed


async def test_with_one_planner_less_plans_still_come(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    for lost in stack.containers("planner"):
        async with on_their_way(openai) as answers:
            await asyncio.to_thread(stack.docker, "stop", lost)
            assert await answers == undisturbed
        # Prometheus may still show what it saw before.
        await asyncio.sleep(SCRAPE_S + 1)
        await asyncio.to_thread(stack.wait_query, "min(outrider_worker_planner_connected)", [1.0])
        await asyncio.to_thread(stack.docker, "start", lost)
        await asyncio.to_thread(stack.wait_healthy, lost)


async def test_without_any_planner_answers_go_on(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    planners = stack.containers("planner")
    async with on_their_way(openai) as answers:
        await asyncio.to_thread(stack.docker, "stop", *planners)
        assert await answers == undisturbed
    assert await stream_all(openai, ASKED, TOKENS, **ENDLESS) == undisturbed
    await asyncio.to_thread(stack.docker, "start", *planners)
    for planner in planners:
        await asyncio.to_thread(stack.wait_healthy, planner)
    await asyncio.to_thread(stack.wait_query, "min(outrider_worker_planner_connected)", [1.0])
    assert await stream_all(openai, ASKED, TOKENS, **ENDLESS) == undisturbed


async def test_a_paused_store_is_waited_for_by_nobody(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    store = stack.only("valkey")
    async with on_their_way(openai) as answers:
        await asyncio.to_thread(stack.docker, "pause", store)
        try:
            assert await answers == undisturbed
            await asyncio.to_thread(stack.wait_query, "min(outrider_planner_store_up)", [0.0])
            for planner in stack.containers("planner"):
                assert stack.is_healthy(planner)
            assert "Paris" in await ask(openai, QUESTION, 24)
        finally:
            await asyncio.to_thread(stack.docker, "unpause", store)
    await asyncio.to_thread(stack.wait_query, "outrider_planner_store_up", [1.0, 1.0])


async def test_after_a_restart_of_everything_keys_and_texts_are_as_before(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    await asyncio.to_thread(stack.compose, "restart", limit_s=240)
    for service in ("valkey", "planner", "worker-1", "worker-2", "router", "prometheus"):
        for container in stack.containers(service):
            await asyncio.to_thread(stack.wait_healthy, container)
    await asyncio.to_thread(stack.wait_ready_workers, 2)
    assert await stream_all(openai, ASKED, TOKENS, **ENDLESS) == undisturbed
