"""The two stores under one contract. In continuous integration Redis must be there."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest

from outrider_planner.store.base import StatsStore
from outrider_planner.store.memory import MemoryStore
from outrider_planner.store.redis import RedisStore
from tests.contract.store.redis_server import RedisServer

BUCKET_S = 0.2


@dataclass
class Subject:
    """A store under test, a second view on the same sums, and a way to let time pass."""

    store: StatsStore
    other: StatsStore
    next_bucket: Callable[[], Awaitable[None]]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if RedisServer.binary() is None:
        reason = "no redis-server or valkey-server on PATH (package redis-server)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "memory":
        now = [1000.0]
        store = MemoryStore(lambda: now[0], BUCKET_S)

        async def step() -> None:
            now[0] += BUCKET_S

        yield Subject(store, store, step)
        return
    server = request.getfixturevalue("redis_server")
    one, two = RedisStore(server.url, BUCKET_S), RedisStore(server.url, BUCKET_S)
    await one._client.execute_command("FLUSHALL")
    yield Subject(one, two, lambda: asyncio.sleep(BUCKET_S))
    await one.close()
    await two.close()
