"""A primary that dies under Sentinel: the store goes on at the one that was promoted (F02)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider_planner.store.base import Batch, StoreUnavailableError, Value
from outrider_planner.store.redis import RedisStore
from outrider_planner.store.redis_client import SentinelUrl, check_url
from tests.support.net import LOOPBACK, wait_until
from tests.support.redis_server import RedisServer, SentinelServer

pytestmark = pytest.mark.redis
SCOPE = "demo:feed"


@pytest.fixture
def nodes(redis_server: RedisServer, tmp_path: Path) -> Iterator[list[RedisServer]]:
    """A primary, its replica, and the sentinel that watches them."""
    primary = RedisServer(tmp_path, "redis", "--repl-diskless-sync-delay", "0")
    primary.start()
    replica = RedisServer(tmp_path, "redis", "--replicaof", LOOPBACK, str(primary.port))
    replica.start()
    sentinel = SentinelServer(tmp_path, primary)
    sentinel.start()
    yield [primary, replica, sentinel]
    for server in (sentinel, replica, primary):
        server.stop()


async def test_after_a_failover_writes_go_to_the_new_primary_and_count_once(
    nodes: list[RedisServer],
) -> None:
    primary, replica, sentinel = nodes
    store = RedisStore(sentinel.url)
    try:
        assert await store.add(SCOPE, Batch("w", 1, {"a": 1}))
        assert await store.keep("k", Value(1, "one"), None) == Value(1, "one")
        wait_until(lambda: "slaves=1" in sentinel.ask("INFO", "sentinel"), 10.0, "the replica")
        wait_until(lambda: f":{_offset(primary)}" in replica.ask("INFO"), 10.0, "replication")
        primary.stop()
        batch, tries = Batch("w", 2, {"a": 1}), 0
        async with asyncio.timeout(20.0):
            while not await _applied(store, batch):
                tries += 1
                await asyncio.sleep(0.1)
        assert tries > 0
        assert replica.ask("ROLE").startswith("*3\r\n$6\r\nmaster")
        assert not await store.add(SCOPE, batch)
        assert await store.buckets(SCOPE) == ({"a": 2},)
        assert await store.kept("k") == Value(1, "one")
    finally:
        await store.close()


async def _applied(store: RedisStore, batch: Batch) -> bool:
    try:
        return await store.add(SCOPE, batch)
    except StoreUnavailableError:
        return False


def _offset(server: RedisServer) -> str:
    """How far a node's replication has come."""
    lines = server.ask("INFO", "replication").splitlines()
    return next(line.partition(":")[2] for line in lines if line.startswith("master_repl_offset"))


def test_a_sentinel_url_names_hosts_service_database_and_both_logins() -> None:
    url = SentinelUrl.parse(
        "redis+sentinel://planner:s%40cret@one:26380,two/main/3?sentinel_password=other"
    )
    assert url.hosts == (("one", 26380), ("two", 26379))
    assert (url.service, url.database) == ("main", 3)
    assert url.node_options == {"username": "planner", "password": "s@cret"}
    assert url.sentinel_options == {"password": "other"}


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:26379",
        "redis+sentinel:///main",
        "redis+sentinel://one:port/main",
        "redis+sentinel://one/main/zero",
        "redis+sentinel://one/main?timeout=3",
        "sentinel://one/main",
    ],
)
def test_a_url_that_cannot_work_is_refused_before_anything_starts(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        check_url(url)


@pytest.mark.parametrize("url", ["redis://h:1/0", "unix:///s", "rediss+sentinel://a,b/main"])
def test_other_urls_are_accepted(url: str) -> None:
    check_url(url)
