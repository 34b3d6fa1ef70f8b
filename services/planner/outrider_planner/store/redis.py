"""The shared store: Redis or Valkey, any number of planners, no leader.

Knows keys, the server-side function, and how calls fail. No command is ever cancelled half-way,
since its reply would be read by the next caller. Does not know what the sums mean. All truth is in
`functions.lua`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from outrider_planner.core.sums import BUCKET_S, MOST_BUCKETS
from outrider_planner.store.base import KEEP_S, Batch, StoreRefusedError, StoreUnavailableError
from outrider_planner.store.redis_client import Part, open_client

_T = TypeVar("_T")
_FUNCTION = "outrider_v1_add"
# A cancelled caller leaves its call running; no more than these run at once.
_MOST_CALLS = 4


class RedisStore:
    """Sums under ``outrider:v1:{scope}:…``; the braces keep a scope in one cluster slot."""

    def __init__(self, url: str, bucket_s: float = BUCKET_S, keep_s: float = KEEP_S) -> None:
        """Contacts nobody yet.

        Raises:
            ValueError: the URL is none of Redis.
        """
        self._client = open_client(url)
        self._bucket_s = bucket_s
        self._keep_s = keep_s
        self._running: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(_MOST_CALLS)
        # Buckets other than the newest no longer change, so each is read once.
        self._closed: dict[str, dict[int, Mapping[str, int]]] = {}

    async def ping(self) -> None:
        """Any answer but an error will do.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._uncancelled(lambda: self._client.execute_command("PING"))

    async def add(self, scope: str, batch: Batch) -> bool:
        """One atomic call of the server-side function; loads it where it is missing.

        Raises:
            StoreUnavailableError: no answer.
            StoreRefusedError: the server refuses (read-only, full).
        """
        prefix = _prefix(scope)
        keys = (f"{prefix}:buckets", f"{prefix}:writer:{batch.writer}", f"{prefix}:sums:")
        pairs = [part for name, amount in batch.fields.items() for part in (name, amount)]
        call = ("FCALL", _FUNCTION, len(keys), *keys)
        arguments = (self._bucket_s, self._keep_s, batch.sequence, *pairs)
        return bool(await self._uncancelled(lambda: self._call(*call, *arguments)))

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """Newest first; only the newest is read again.

        Raises:
            StoreUnavailableError: no answer.
            StoreRefusedError: the server refuses, or holds what are no sums.
        """
        return await self._uncancelled(lambda: self._read(scope))

    def forget(self, scope: str) -> None:
        """Drops the scope's older buckets from memory; they are read again when asked for."""
        self._closed.pop(scope, None)

    async def close(self) -> None:
        """Waits for calls in flight, which end by their own timeouts."""
        if self._running:
            await asyncio.wait(self._running)
        await self._client.aclose()

    async def _call(self, *parts: Part) -> object:
        try:
            return await self._client.execute_command(*parts)
        except ResponseError as error:
            if "function not found" not in str(error).lower():
                raise
        await self._client.execute_command("FUNCTION", "LOAD", "REPLACE", _library())
        return await self._client.execute_command(*parts)

    async def _read(self, scope: str) -> tuple[Mapping[str, int], ...]:
        prefix = _prefix(scope)
        names = await self._client.execute_command(
            "ZREVRANGE", f"{prefix}:buckets", 0, MOST_BUCKETS - 1
        )
        numbers = [int(name) for name in names]
        known = {n: b for n, b in self._closed.get(scope, {}).items() if n in numbers[1:]}
        wanted = [number for number in numbers if number not in known]
        async with self._client.pipeline(transaction=False) as pipeline:
            for number in wanted:
                pipeline.execute_command("HGETALL", f"{prefix}:sums:{number}")
            read = dict(zip(wanted, map(_parsed, await pipeline.execute()), strict=True))
        self._closed[scope] = {**known, **{n: read[n] for n in wanted if n in numbers[1:]}}
        return tuple(read[number] if number in read else known[number] for number in numbers)

    async def _uncancelled(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Runs a call to its end in a task of its own, even if the caller is cancelled."""
        await self._slots.acquire()
        task = asyncio.ensure_future(self._translated(call))
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._slots.release()
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    async def _translated(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await call()
        except ReadOnlyError as error:
            # A demoted primary: pooled connections must not stay on it.
            await self._client.connection_pool.disconnect()
            raise StoreRefusedError(f"the store is read-only: {error}") from error
        except ResponseError as error:
            raise StoreRefusedError(f"the store refuses: {error}") from error
        except ValueError as error:
            raise StoreRefusedError(f"the store holds what are no sums: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailableError(f"the store does not answer: {error}") from error


def _prefix(scope: str) -> str:
    return f"outrider:v1:{{{scope}}}"


def _parsed(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(amount) for name, amount in fields.items()}


def _library() -> str:
    return files("outrider_planner.store").joinpath("functions.lua").read_text()
