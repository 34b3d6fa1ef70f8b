"""Every service is replaced, one container after the other, while callers never stop asking."""

import asyncio

import pytest
from openai import APIError, AsyncOpenAI

from tests.deploy.containers.stack import ContainerStack
from tests.deploy.containers.streams import Callers, on_their_way

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

TOKENS = 48


@pytest.mark.parametrize("service", ["valkey", "planner", "worker-1", "worker-2", "prometheus"])
async def test_no_request_is_lost(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str], service: str
) -> None:
    callers = Callers(undisturbed, TOKENS, [openai])
    with callers.calling():
        await callers.until_more(4)
        for container in stack.containers(service):
            await asyncio.to_thread(stack.restart, container)
            await callers.until_more(8)
    assert callers.failures == []
    await asyncio.to_thread(stack.wait_ready_workers, 2)


async def test_routers_take_turns(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    """One that is to stop is given nothing new first, as an endpoint that is no longer ready."""
    with stack.second_router() as (second, port):
        async with stack.client(port) as other:
            callers = Callers(undisturbed, TOKENS, [openai, other])
            with callers.calling():
                await callers.until_more(4)
                for door, router in ((openai, stack.only("router")), (other, second)):
                    callers.doors.remove(door)
                    await asyncio.to_thread(stack.restart, router)
                    callers.doors.append(door)
                    await callers.until_more(8)
    assert callers.failures == []


async def test_answers_longer_than_a_worker_s_limit_move_on(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str]
) -> None:
    """Worker 1 waits a second for what runs (hasty_worker.yml)."""
    moved = stack.metric("outrider_router_migrations_total")
    async with on_their_way(openai) as answers:
        await asyncio.to_thread(stack.restart, stack.only("worker-1"))
        assert await answers == undisturbed
    assert stack.metric("outrider_router_migrations_total") > moved
    await asyncio.to_thread(stack.wait_ready_workers, 2)


async def test_answers_longer_than_the_router_s_limit_end_with_an_event(
    stack: ContainerStack,
) -> None:
    """The event that docs/api.md promises, not a connection that breaks; and a clean end."""
    with stack.second_router(OUTRIDER_ROUTER_DRAIN_LIMIT_S="1") as (router, port):
        async with stack.client(port) as door, on_their_way(door) as answers:
            await asyncio.to_thread(stack.docker, "stop", router)
            with pytest.raises(APIError, match="the router is stopping"):
                await answers
        assert stack.inspect(router)["State"]["ExitCode"] == 0
