"""The part of a Redis client that the store uses, and how it is opened.

Knows timeouts and retries. Does not know keys or commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from redis import asyncio as redis_asyncio
from redis.asyncio.connection import parse_url as parse_redis_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

# With one retry, a server that is silent is known to be away after one second.
TIMEOUT_S = 0.475
RETRY_AFTER_S = 0.05

Part = str | int | float


class Pipeline(Protocol):
    """Commands that are sent together."""

    def execute_command(self, *parts: Part) -> object: ...

    async def execute(self) -> list[Mapping[bytes, bytes]]: ...


class ConnectionPool(Protocol):
    """The client's open connections."""

    async def disconnect(self) -> None: ...


class RedisClient(Protocol):
    """Answers are as Redis gives them: bytes, integers, lists, dictionaries."""

    @property
    def connection_pool(self) -> ConnectionPool: ...

    async def execute_command(self, *parts: Part) -> Any: ...

    def pipeline(self, transaction: bool) -> AbstractAsyncContextManager[Pipeline]: ...

    async def aclose(self) -> None: ...


def open_client(url: str) -> RedisClient:
    """A client that contacts nobody before its first command.

    Raises:
        ValueError: the URL is none of Redis.
    """
    # The default retries would hide an outage for about a minute.
    backoff = ExponentialBackoff(cap=RETRY_AFTER_S, base=RETRY_AFTER_S)
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(backoff, retries=1),
    }
    return cast(RedisClient, redis_asyncio.Redis.from_url(url, **options))


def check_url(url: str) -> None:
    """Accepts a URL that can be opened.

    Raises:
        ValueError: the URL is none of Redis.
    """
    parse_redis_url(url)
