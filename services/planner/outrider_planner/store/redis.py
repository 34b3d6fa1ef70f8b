"""The shared store: Redis or Valkey, any number of planners, no leader.

Knows keys, the server-side function, and how calls fail: short timeouts, one retry, and no
command is ever cancelled half-way, since its reply would be read by the next caller. Does not know
what the sums mean. All truth is in `functions.lua`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

from redis import asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from outrider_planner.store.base import BUCKET_S, KEEP_S, Batch, StoreUnavailableError

_T = TypeVar("_T")
_FUNCTION = "outrider_v1_add"
_TIMEOUT_S = 1.0
_CONNECT_TIMEOUT_S = 0.5
_RETRY_AFTER_S = 0.05


class RedisStore:
    """Sums under ``outrider:v1:{scope}:…``; the braces keep a scope in one cluster slot."""

    def __init__(self, url: str, bucket_s: float = BUCKET_S, keep_s: float = KEEP_S) -> None:
        # The default retries would hide an outage for about a minute.
        self._client: Any = redis_asyncio.Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            retry=Retry(ExponentialBackoff(cap=_RETRY_AFTER_S, base=_RETRY_AFTER_S), retries=1),
        )
        self._bucket_s = bucket_s
        self._keep_s = keep_s
        self._running: set[asyncio.Task[Any]] = set()
        # Buckets other than the newest no longer change, so each is read once.
        self._closed: dict[str, dict[int, Mapping[str, int]]] = {}

    async def add(self, scope: str, batch: Batch) -> bool:
        """One atomic call of the server-side function; loads it where it is missing.

        Raises:
            StoreUnavailableError: no answer, or the server refuses (read-only, full).
        """
        prefix = _prefix(scope)
        keys = (f"{prefix}:buckets", f"{prefix}:writer:{batch.writer}", f"{prefix}:sums:")
        pairs = [part for name, amount in batch.fields.items() for part in (name, amount)]
        args = (self._bucket_s, self._keep_s, batch.sequence, *pairs)
        applied = await self._uncancelled(lambda: self._call(keys, args))
        return bool(applied)

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """Newest first; only the newest is read again.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._uncancelled(lambda: self._read(scope))

    async def close(self) -> None:
        """Waits for calls in flight, which end by their own timeouts."""
        if self._running:
            await asyncio.wait(self._running)
        await self._client.aclose()

    async def _call(self, keys: tuple[str, ...], args: tuple[object, ...]) -> object:
        try:
            return await self._client.fcall(_FUNCTION, len(keys), *keys, *args)
        except ResponseError as error:
            if "function not found" not in str(error).lower():
                raise
        await self._client.function_load(_library(), replace=True)
        return await self._client.fcall(_FUNCTION, len(keys), *keys, *args)

    async def _read(self, scope: str) -> tuple[Mapping[str, int], ...]:
        prefix = _prefix(scope)
        names = await self._client.zrange(f"{prefix}:buckets", 0, -1, desc=True)
        numbers = [int(name) for name in names]
        known = {n: b for n, b in self._closed.get(scope, {}).items() if n in numbers[1:]}
        wanted = [number for number in numbers if number not in known]
        async with self._client.pipeline(transaction=False) as pipeline:
            for number in wanted:
                pipeline.hgetall(f"{prefix}:sums:{number}")
            read = dict(zip(wanted, map(_parsed, await pipeline.execute()), strict=True))
        self._closed[scope] = {**known, **{n: read[n] for n in wanted if n in numbers[1:]}}
        return tuple(read[number] if number in read else known[number] for number in numbers)

    async def _uncancelled(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Runs a call to its end in a task of its own, even if the caller is cancelled."""
        task = asyncio.ensure_future(self._translated(call))
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    async def _translated(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await call()
        except ReadOnlyError as error:
            # A demoted primary: pooled connections must not stay on it.
            await self._client.connection_pool.disconnect()
            raise StoreUnavailableError(f"the store is read-only: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailableError(f"the store failed: {error}") from error


def _prefix(scope: str) -> str:
    return f"outrider:v1:{{{scope}}}"


def _parsed(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(amount) for name, amount in fields.items()}


def _library() -> str:
    return files("outrider_planner.store").joinpath("functions.lua").read_text()
