"""One stack for all tests here; each leaves it healthy."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.deploy.containers.stack import ContainerStack
from tests.deploy.containers.streams import ASKED, ENDLESS, TOKENS
from tests.support.chat import stream_all


@pytest.fixture(scope="session")
def stack() -> Iterator[ContainerStack]:
    with ContainerStack() as running:
        yield running


@pytest.fixture
async def openai(stack: ContainerStack) -> AsyncIterator[AsyncOpenAI]:
    """A client that does not retry by itself."""
    async with stack.client() as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def undisturbed(stack: ContainerStack) -> list[str]:
    """The texts of ASKED, before anything is hurt."""
    async with stack.client() as client:
        return await stream_all(client, ASKED, TOKENS, **ENDLESS)
