"""Calls to a Redis server that always run to their end, and fail in two ways only.

Knows that no command may be cancelled half-way, since its reply would be read by the next caller;
how the server-side functions get there; and which failure is a refusal. Does not know keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from outrider_planner.store.base import StoreRefusedError, StoreUnavailableError
from outrider_planner.store.redis_client import Part, RedisClient, close_client, open_client

_T = TypeVar("_T")
# A cancelled caller leaves its call running; no more than these run at once.
_MOST_CALLS = 4


class RedisCalls:
    """One client, contacted with the first call."""

    def __init__(self, url: str) -> None:
        """Raises ``ValueError`` where the URL is none of Redis."""
        self.client: RedisClient = open_client(url)
        self._running: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(_MOST_CALLS)

    async def command(self, *parts: Part) -> Any:
        """One command.

        Raises:
            StoreUnavailableError: no answer.
            StoreRefusedError: the server refuses (read-only, full).
        """
        return await self.run(lambda: self.client.execute_command(*parts))

    async def function(self, name: str, keys: Sequence[str], arguments: Sequence[Part]) -> Any:
        """One call of a server-side function, which is loaded where it is missing. Raises alike."""
        parts = ("FCALL", f"outrider_v1_{name}", len(keys), *keys, *arguments)
        return await self.run(lambda: self._function(*parts))

    async def run(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Runs a call in a task of its own, even if the caller is cancelled. Raises alike."""
        await self._slots.acquire()
        task = asyncio.ensure_future(self._translated(call))
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits for calls in flight, which end by their own timeouts."""
        if self._running:
            await asyncio.wait(self._running)
        await close_client(self.client)

    async def _function(self, *parts: Part) -> object:
        try:
            return await self.client.execute_command(*parts)
        except ResponseError as error:
            if "function not found" not in str(error).lower():
                raise
        await self.client.execute_command("FUNCTION", "LOAD", "REPLACE", _library())
        return await self.client.execute_command(*parts)

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
            await self.client.connection_pool.disconnect()
            raise StoreRefusedError(f"the store is read-only: {error}") from error
        except ResponseError as error:
            raise StoreRefusedError(f"the store refuses: {error}") from error
        except ValueError as error:
            raise StoreRefusedError(f"the store holds what cannot be read: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailableError(f"the store does not answer: {error}") from error


def _library() -> str:
    return files("outrider_planner.store").joinpath("functions.lua").read_text()
