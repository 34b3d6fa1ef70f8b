"""The pages in a real browser, where `-m browser` asks for it (`make test-browser`).

One Chromium per module, in the module's own loop; `async with chromium.tab(url) as tab` opens a
tab, which fails its test if the browser complained about anything.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.fake_worker import ALL_OPTIONS, FakeWorker
from tests.support.router_stack import Stack, running_router

if TYPE_CHECKING:
    from tests.support.browser import Chromium


def pytest_ignore_collect(collection_path: object, config: pytest.Config) -> bool | None:
    wanted = "browser" in config.getoption("markexpr")
    return True if str(collection_path).endswith(".py") and not wanted else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator["Chromium"]:
    # Only where these tests run is there what this imports.
    from tests.support.browser import running_chromium

    async with running_chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_chat_stack() -> AsyncIterator[Stack]:
    worker = FakeWorker(options=ALL_OPTIONS, drafters=("ngram", "head"), context_tokens=4096)
    async with worker, running_router(worker) as router:
        yield Stack(worker, router)


@pytest_asyncio.fixture(loop_scope="module")
async def chat_stack(shared_chat_stack: Stack) -> AsyncIterator[Stack]:
    """A router with its page and a worker that offers everything, as new."""
    shared_chat_stack.forget()
    yield shared_chat_stack
    await shared_chat_stack.until_idle()
