"""What only a real server can go through: restarts, clocks, lost functions, cancelled calls."""

import asyncio
import time
from pathlib import Path

import pytest

from outrider_planner.store.base import Batch, StoreUnavailableError
from outrider_planner.store.memory import MemoryStore
from outrider_planner.store.redis import RedisStore
from tests.contract.store.redis_server import RedisServer

pytestmark = pytest.mark.redis
SCOPE = "demo:feed"


@pytest.fixture
async def store(redis_server: RedisServer):  # type: ignore[no-untyped-def]
    made = RedisStore(redis_server.url)
    await made._client.execute_command("FLUSHALL")
    yield made
    await made.close()


async def test_keys_share_one_hash_tag_and_all_expire(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    keys = [key.decode() for key in await store._client.execute_command("KEYS", "*")]
    assert len(keys) == 3
    for key in keys:
        assert key.startswith("outrider:v1:{demo:feed}:")
        assert 0 < await store._client.execute_command("TTL", key) <= 7 * 24 * 3600


async def test_a_server_clock_that_steps_back_opens_no_older_bucket(store: RedisStore) -> None:
    """As if written before the step: the newest bucket lies in the future."""
    future = int(time.time() // 900) + 5
    await store._client.execute_command(
        "ZADD", f"outrider:v1:{{{SCOPE}}}:buckets", future, str(future)
    )
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    fields = await store._client.execute_command(
        "HGETALL", f"outrider:v1:{{{SCOPE}}}:sums:{future}"
    )
    assert fields == {b"a": b"1"}


async def test_functions_that_are_lost_are_loaded_again(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await store._client.execute_command("FUNCTION FLUSH")
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1}))
    assert await store.buckets(SCOPE) == ({"a": 2},)


async def test_a_flushed_server_is_empty_and_not_remembered(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    assert await store.buckets(SCOPE) == ({"a": 1},)
    await store._client.execute_command("FLUSHALL")
    assert await store.buckets(SCOPE) == ()


async def test_a_full_server_refuses_whole_batches(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await store._client.execute_command("CONFIG SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailableError):
            await store.add(SCOPE, Batch("w", 2, {"a": 1, "b": 1}))
    finally:
        await store._client.execute_command("CONFIG SET", "maxmemory", "0")
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1, "b": 1}))
    assert await store.buckets(SCOPE) == ({"a": 2, "b": 1},)


async def test_a_demoted_primary_is_unavailable_until_promoted(store: RedisStore) -> None:
    """F02: READONLY is an outage, and the next write after it works at once."""
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await store._client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await store.add(SCOPE, Batch("w", 2, {"a": 1}))
    finally:
        await store._client.execute_command("REPLICAOF", "NO", "ONE")
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1}))


async def test_an_outage_is_known_within_a_second_and_over_at_once(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    made = RedisStore(server.url)
    try:
        batch = Batch("w", 1, {"a": 1})
        assert await made.add(SCOPE, batch)
        server.stop()
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            await made.add(SCOPE, Batch("w", 2, {"a": 1}))
        assert time.monotonic() - began_s < 2.5
        server.start()
        assert await made.add(SCOPE, Batch("w", 2, {"a": 1}))
    finally:
        await made.close()
        server.stop()


async def test_cancelled_callers_never_shift_replies(redis_server: RedisServer) -> None:
    """F01: calls cancelled at random moments; every later answer belongs to its question."""
    scopes = [f"scope-{i}:x" for i in range(8)]
    made, truth = RedisStore(redis_server.url), MemoryStore(lambda: 0.0)
    await made._client.execute_command("FLUSHALL")
    for number, scope in enumerate(scopes):
        for store in (made, truth):
            await store.add(scope, Batch("w", 1, {f"field-{number}": number + 1}))
    for i in range(200):
        task = asyncio.ensure_future(made.buckets(scopes[i % 8]))
        await asyncio.sleep(0.0003 * (i % 5))
        task.cancel()
    for scope in scopes:
        assert await made.buckets(scope) == await truth.buckets(scope)
    await made.close()
