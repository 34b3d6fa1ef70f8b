"""The shared store: Redis or Valkey, any number of planners, no leader.

Knows keys and the form of answers. Does not know what the sums, values and entries mean. All truth
is in `functions.lua`.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider_planner.core.sums import BUCKET_S, MOST_BUCKETS
from outrider_planner.store.base import KEEP_S, Batch, Page, Value
from outrider_planner.store.redis_calls import RedisCalls
from outrider_planner.store.redis_client import Part


class RedisStore:
    """All under ``outrider:v1:{name}:…``; the braces keep what belongs together in one slot.

    Every method but ``forget`` and ``close`` raises ``StoreUnavailableError`` without an answer,
    and ``StoreRefusedError`` where the server refuses (read-only, full) or holds what cannot be
    read.
    """

    def __init__(self, url: str, bucket_s: float = BUCKET_S, keep_s: float = KEEP_S) -> None:
        """Contacts nobody yet.

        Raises:
            ValueError: the URL is none of Redis.
        """
        self._calls = RedisCalls(url)
        self._bucket_s = bucket_s
        self._keep_s = keep_s
        # Buckets other than the newest no longer change, so each is read once.
        self._closed: dict[str, dict[int, Mapping[str, int]]] = {}

    async def ping(self) -> None:
        """Any answer but an error will do."""
        await self._calls.command("PING")

    async def add(self, scope: str, batch: Batch) -> bool:
        """One atomic call."""
        prefix = _prefix(scope)
        keys = (f"{prefix}:buckets", f"{prefix}:writer:{batch.writer}", f"{prefix}:sums:")
        pairs = [part for name, amount in batch.fields.items() for part in (name, amount)]
        arguments = (self._bucket_s, self._keep_s, batch.sequence, *pairs)
        return bool(await self._calls.function("add", keys, arguments))

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """Newest first; only the newest is read again."""
        return await self._calls.run(lambda: self._read(scope))

    async def keep(self, key: str, value: Value, keep_s: float | None) -> Value:
        """One atomic call."""
        arguments = (value.version, value.text, keep_s or 0)
        answer = await self._calls.function("keep", (_value_key(key),), arguments)
        return _value(answer[0], answer[1])

    async def kept(self, key: str) -> Value | None:
        """One read."""

        async def read() -> Value | None:
            found = await self._calls.client.execute_command(
                "HMGET", _value_key(key), "version", "text"
            )
            return None if None in found else _value(*found)

        return await self._calls.run(read)

    async def append(self, log: str, page: Page, most_entries: int) -> bool:
        """One atomic call; trimmed by whole nodes of the stream, which is cheap."""
        prefix = _prefix(log)
        keys = (f"{prefix}:log", f"{prefix}:writer:{page.writer}")
        arguments: list[Part] = [most_entries, self._keep_s, page.sequence, *page.entries]
        return bool(await self._calls.function("append", keys, arguments))

    async def entries(self, log: str, after: str, most: int) -> tuple[tuple[str, str], ...]:
        """Places are ids of the stream."""
        start = f"({after}" if after else "-"

        async def read() -> tuple[tuple[str, str], ...]:
            found = await self._calls.client.execute_command(
                "XRANGE", f"{_prefix(log)}:log", start, "+", "COUNT", most
            )
            return tuple((place.decode(), pairs[b"entry"].decode()) for place, pairs in found)

        return await self._calls.run(read)

    def forget(self, scope: str) -> None:
        """Drops the scope's older buckets from memory; they are read again when asked for."""
        self._closed.pop(scope, None)

    async def close(self) -> None:
        """Waits for calls in flight, which end by their own timeouts."""
        await self._calls.close()

    async def _read(self, scope: str) -> tuple[Mapping[str, int], ...]:
        prefix, client = _prefix(scope), self._calls.client
        names = await client.execute_command("ZREVRANGE", f"{prefix}:buckets", 0, MOST_BUCKETS - 1)
        numbers = [int(name) for name in names]
        known = {n: b for n, b in self._closed.get(scope, {}).items() if n in numbers[1:]}
        wanted = [number for number in numbers if number not in known]
        async with client.pipeline(transaction=False) as pipeline:
            for number in wanted:
                pipeline.execute_command("HGETALL", f"{prefix}:sums:{number}")
            read = dict(zip(wanted, map(_parsed, await pipeline.execute()), strict=True))
        self._closed[scope] = {**known, **{n: read[n] for n in wanted if n in numbers[1:]}}
        return tuple(read[number] if number in read else known[number] for number in numbers)


def _prefix(name: str) -> str:
    return f"outrider:v1:{{{name}}}"


def _value_key(key: str) -> str:
    return f"{_prefix(key)}:value"


def _value(version: bytes, text: bytes) -> Value:
    return Value(int(version), text.decode())


def _parsed(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(amount) for name, amount in fields.items()}
