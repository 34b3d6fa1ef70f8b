"""Every service is replaced, one container after the other, while callers never stop asking."""

import asyncio
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI

from tests.deploy.containers.stack import ContainerStack
from tests.deploy.containers.streams import Callers
from tests.support.net import free_ports

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


@pytest.fixture
def second_router(stack: ContainerStack) -> Iterator[int]:
    """The port of another router beside the first, as a rolling update has them."""
    (port,) = free_ports(1)
    name = f"{stack.project}-second-router"
    stack.compose(
        *("run", "--detach", "--no-deps", "--name", name),
        *("--publish", f"127.0.0.1:{port}:8000", "router"),
    )
    stack.wait_healthy(name)
    yield port
    stack.docker("rm", "--force", name)


async def test_routers_take_turns(
    stack: ContainerStack, openai: AsyncOpenAI, undisturbed: list[str], second_router: int
) -> None:
    """One that is to stop is given nothing new first, as an endpoint that is no longer ready."""
    async with stack.client(second_router) as other:
        callers = Callers(undisturbed, TOKENS, [openai, other])
        with callers.calling():
            await callers.until_more(4)
            for door, router in (
                (openai, stack.only("router")),
                (other, f"{stack.project}-second-router"),
            ):
                callers.doors.remove(door)
                await asyncio.to_thread(stack.restart, router)
                callers.doors.append(door)
                await callers.until_more(8)
    assert callers.failures == []
