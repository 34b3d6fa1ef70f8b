"""One stack per module for the tests that leave it as it was; they run in the module's own loop."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.fake_worker import ALL_OPTIONS, FakeWorker
from tests.support.router_stack import Stack, running_router, running_stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_stack() -> AsyncIterator[Stack]:
    async with running_stack() as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def stack(shared_stack: Stack) -> AsyncIterator[Stack]:
    """The module's stack, as new; the test must leave nothing in flight."""
    shared_stack.forget()
    yield shared_stack
    await shared_stack.until_idle()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_offering() -> AsyncIterator[Stack]:
    async with FakeWorker(options=ALL_OPTIONS) as worker, running_router(worker) as router:
        yield Stack(worker, router)


@pytest_asyncio.fixture(loop_scope="module")
async def offering(shared_offering: Stack) -> AsyncIterator[Stack]:
    """As `stack`, with a worker that offers every option."""
    shared_offering.forget()
    yield shared_offering
    await shared_offering.until_idle()
