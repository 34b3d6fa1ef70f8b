"""The part of a Redis client that the store uses, and how it is opened.

Knows the forms of a URL, Sentinel's among them, timeouts and retries. Does not know keys or
commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import asyncio as redis_asyncio
from redis.asyncio.connection import parse_url as parse_redis_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialBackoff

# With one retry, a server that is silent is known to be away after one second.
TIMEOUT_S = 0.475
RETRY_AFTER_S = 0.05
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SENTINEL_PORT = 26379

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


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """``redis+sentinel://user:password@host:26379,host:26379/service/database``.

    User and password are those of the data nodes; ``sentinel_username`` and ``sentinel_password``
    in the query are for the sentinels. ``rediss+sentinel`` speaks TLS to all of them.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int
    node_options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any]

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """Raises ``ValueError`` where the URL has another form."""
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        unknown = query.keys() - {"sentinel_username", "sentinel_password"}
        if not service or unknown:
            raise ValueError("a Sentinel URL needs a service's name and takes no other options")
        tls = {"ssl": True} if parts.scheme == "rediss+sentinel" else {}
        user, _, password = login.partition(":")
        return cls(
            hosts=tuple(map(_host, hosts.split(","))),
            service=unquote(service),
            database=int(database or 0),
            node_options=_login(unquote(user), unquote(password)) | tls,
            sentinel_options=_login(
                query.get("sentinel_username", ""), query.get("sentinel_password", "")
            )
            | tls,
        )

    def open(self) -> redis_asyncio.Redis:
        """A client of whichever node is primary when a connection is made."""
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            self.hosts, sentinel_kwargs={**_patience(), **self.sentinel_options}, **_patience()
        )
        client: redis_asyncio.Redis = sentinel.master_for(
            self.service, db=self.database, **self.node_options
        )
        return client


def open_client(url: str) -> RedisClient:
    """A client that contacts nobody before its first command.

    Raises:
        ValueError: the URL is none of Redis.
    """
    if urlsplit(url).scheme in _SENTINEL_SCHEMES:
        return cast(RedisClient, SentinelUrl.parse(url).open())
    return cast(RedisClient, redis_asyncio.Redis.from_url(url, **_patience()))


async def close_client(client: RedisClient) -> None:
    """Ends its connections, those to sentinels among them."""
    await client.aclose()
    sentinel = getattr(client.connection_pool, "sentinel_manager", None)
    for watcher in sentinel.sentinels if sentinel else ():
        await watcher.aclose()


def check_url(url: str) -> None:
    """Accepts a URL that can be opened.

    Raises:
        ValueError: the URL is none of Redis.
    """
    if urlsplit(url).scheme in _SENTINEL_SCHEMES:
        SentinelUrl.parse(url)
    else:
        parse_redis_url(url)


def _patience() -> dict[str, Any]:
    # The default retries would hide an outage for about a minute.
    backoff = ExponentialBackoff(cap=RETRY_AFTER_S, base=RETRY_AFTER_S)
    return {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(backoff, retries=1),
    }


def _login(user: str, password: str) -> dict[str, Any]:
    given = {"username": user, "password": password}
    return {name: value for name, value in given.items() if value}


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"no host in {text!r}")
    return parts.hostname, parts.port or _SENTINEL_PORT
