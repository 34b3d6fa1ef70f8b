"""What only a real server can go through: restarts, clocks, lost functions, cancelled calls."""

import asyncio
import time
from pathlib import Path

import pytest

from outrider_planner.store.base import Batch, StoreRefusedError, StoreUnavailableError
from outrider_planner.store.memory import MemoryStore
from outrider_planner.store.redis import RedisStore
from tests.support.fault_proxy import fault_proxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.redis
SCOPE = "demo:feed"


@pytest.fixture
async def store(redis_server: RedisServer):  # type: ignore[no-untyped-def]
    made = RedisStore(redis_server.url)
    await made._calls.client.execute_command("FLUSHALL")
    yield made
    await made.close()


async def test_keys_share_one_hash_tag_and_all_expire(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    keys = [key.decode() for key in await store._calls.client.execute_command("KEYS", "*")]
    assert len(keys) == 3
    for key in keys:
        assert key.startswith("outrider:v1:{demo:feed}:")
        assert 0 < await store._calls.client.execute_command("TTL", key) <= 7 * 24 * 3600


async def test_a_server_clock_that_steps_back_opens_no_older_bucket(store: RedisStore) -> None:
    """As if written before the step: the newest bucket lies in the future."""
    future = int(time.time() // 900) + 5
    await store._calls.client.execute_command(
        "ZADD", f"outrider:v1:{{{SCOPE}}}:buckets", future, str(future)
    )
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    fields = await store._calls.client.execute_command(
        "HGETALL", f"outrider:v1:{{{SCOPE}}}:sums:{future}"
    )
    assert fields == {b"a": b"1"}


async def test_functions_that_are_lost_are_loaded_again(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await store._calls.client.execute_command("FUNCTION FLUSH")
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1}))
    assert await store.buckets(SCOPE) == ({"a": 2},)


async def test_a_flushed_server_is_empty_and_not_remembered(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    assert await store.buckets(SCOPE) == ({"a": 1},)
    await store._calls.client.execute_command("FLUSHALL")
    assert await store.buckets(SCOPE) == ()


async def test_a_full_server_refuses_whole_batches(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await store._calls.client.execute_command("CONFIG SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailableError):
            await store.add(SCOPE, Batch("w", 2, {"a": 1, "b": 1}))
    finally:
        await store._calls.client.execute_command("CONFIG SET", "maxmemory", "0")
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1, "b": 1}))
    assert await store.buckets(SCOPE) == ({"a": 2, "b": 1},)


async def test_a_demoted_primary_is_unavailable_until_promoted(store: RedisStore) -> None:
    """F02: READONLY is an outage, and the next write after it works at once."""
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await store._calls.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="read-only"):
            await store.add(SCOPE, Batch("w", 2, {"a": 1}))
    finally:
        await store._calls.client.execute_command("REPLICAOF", "NO", "ONE")
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1}))


@pytest.mark.parametrize("amount", [2**53, 2**62, -1])
async def test_amounts_out_of_range_are_refused_before_anything_is_written(
    store: RedisStore, amount: int
) -> None:
    """Half a batch applied without its sequence would be applied again when it is resent."""
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    with pytest.raises(StoreRefusedError, match="amount of b"):
        await store.add(SCOPE, Batch("w", 2, {"a": 1, "b": amount}))
    assert await store.buckets(SCOPE) == ({"a": 1},)
    assert await store.add(SCOPE, Batch("w", 2, {"a": 1, "b": 2}))
    assert await store.buckets(SCOPE) == ({"a": 2, "b": 2},)


async def test_a_sum_that_is_full_keeps_no_batch_from_counting_once(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1, "b": 1, "c": 1}))
    (sums,) = await store._calls.client.execute_command("KEYS", "*:sums:*")
    await store._calls.client.execute_command("HSET", sums, "b", 2**63 - 1)
    batch = Batch("w", 2, {"a": 1, "b": 1, "c": 1})
    assert [await store.add(SCOPE, batch), await store.add(SCOPE, batch)] == [True, False]
    assert await store.buckets(SCOPE) == ({"a": 2, "b": 2**63 - 1, "c": 2},)


async def test_what_are_no_sums_is_a_refusal_and_no_fault_of_ours(store: RedisStore) -> None:
    await store.add(SCOPE, Batch("w", 1, {"a": 1}))
    (sums,) = await store._calls.client.execute_command("KEYS", "*:sums:*")
    await store._calls.client.execute_command("HSET", sums, "b", "many")
    with pytest.raises(StoreRefusedError, match="cannot be read"):
        await store.buckets(SCOPE)


# What is promised is 1 s: two timeouts and the pause between them. The rest is for busy machines.
NOTICED_S = 1.0 + 0.5


async def test_a_server_that_is_gone_is_noticed_and_one_that_is_back_served_at_once(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    made = RedisStore(server.url)
    try:
        batch = Batch("w", 1, {"a": 1})
        assert await made.add(SCOPE, batch)
        server.stop()
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailableError) as failed:
            await made.add(SCOPE, Batch("w", 2, {"a": 1}))
        assert time.monotonic() - began_s < NOTICED_S
        assert not isinstance(failed.value, StoreRefusedError)
        server.start()
        assert await made.add(SCOPE, Batch("w", 2, {"a": 1}))
    finally:
        await made.close()
        server.stop()


async def test_a_server_that_has_fallen_silent_is_noticed(redis_server: RedisServer) -> None:
    async with fault_proxy(redis_server.port) as proxy:
        made = RedisStore(proxy.url)
        try:
            await made.ping()
            proxy.delay_s = 30.0
            began_s = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="not answer"):
                await made.buckets("never:written")
            assert time.monotonic() - began_s < NOTICED_S
            proxy.delay_s = 0.0
            assert await made.buckets("never:written") == ()
        finally:
            await made.close()


async def test_cancelled_callers_never_shift_replies(redis_server: RedisServer) -> None:
    """F01: callers cancelled while answers are on their way, 100 ms late.

    Every later answer belongs to its question, and no cut call costs a connection.
    """
    scopes = [f"scope-{i}:x" for i in range(8)]
    direct, truth = RedisStore(redis_server.url), MemoryStore(lambda: 0.0)
    await direct._calls.client.execute_command("FLUSHALL")
    for number, scope in enumerate(scopes):
        for store in (direct, truth):
            await store.add(scope, Batch("w", 1, {f"field-{number}": number + 1}))
    await direct.close()
    async with fault_proxy(redis_server.port) as proxy:
        proxy.delay_s = 0.1
        made = RedisStore(proxy.url)
        try:
            cancelled = 0
            for i in range(300):
                task = asyncio.ensure_future(made.buckets(scopes[i % 8]))
                await asyncio.sleep(0.001 * (i % 8))
                cancelled += task.cancel()
            found = await asyncio.gather(*map(made.buckets, scopes))
            assert found == [await truth.buckets(scope) for scope in scopes]
            assert cancelled > 250
            assert proxy.connections <= 4
        finally:
            await made.close()
