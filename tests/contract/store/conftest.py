"""The stores under one contract: embedded, Redis, and Valkey where it is installed.

In continuous integration Redis must be there.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest

from outrider_planner.store.base import PlannerStore
from outrider_planner.store.memory import MemoryStore
from outrider_planner.store.redis import RedisStore
from tests.support.redis_server import RedisServer

BUCKET_S = 0.2


@dataclass
class Subject:
    """A store under test, a second view on the same sums, and a way to let time pass."""

    store: PlannerStore
    other: PlannerStore
    next_bucket: Callable[[], Awaitable[None]]


def _server(name: str, factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if not RedisServer.installed(name):
        reason = f"no {name}-server on PATH (package {name} or {name}-server)"
        if name == "redis" and os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    server = RedisServer(factory.mktemp(name), name)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from _server("redis", tmp_path_factory)


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from _server("valkey", tmp_path_factory)


# Valkey's absence is skipped once, by a test of its own.
_SERVERS = [
    pytest.param(name, marks=pytest.mark.redis)
    for name in ("redis", "valkey")
    if name == "redis" or RedisServer.installed(name)
]


@pytest.fixture(params=["memory", *_SERVERS])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "memory":
        now = [1000.0]
        store = MemoryStore(lambda: now[0], BUCKET_S)

        async def step() -> None:
            now[0] += BUCKET_S

        yield Subject(store, store, step)
        return
    server = request.getfixturevalue(f"{request.param}_server")
    one, two = RedisStore(server.url, BUCKET_S), RedisStore(server.url, BUCKET_S)
    await one._calls.client.execute_command("FLUSHALL")
    yield Subject(one, two, lambda: asyncio.sleep(BUCKET_S))
    await one.close()
    await two.close()
