"""One stack for all tests here; each leaves it healthy."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
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


@pytest.fixture(scope="session")
def undisturbed(stack: ContainerStack) -> list[str]:
    """The texts of ASKED, before anything is hurt."""

    async def ask() -> list[str]:
        async with stack.client() as client:
            return await stream_all(client, ASKED, TOKENS, **ENDLESS)

    return asyncio.run(ask())
