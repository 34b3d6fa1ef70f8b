"""The embedded store of a one-machine run: what Redis would do, in a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outrider_planner.core.sums import BUCKET_S, MOST_BUCKETS, merge
from outrider_planner.store.base import KEEP_S, Batch


@dataclass(slots=True)
class _Scope:
    buckets: dict[int, dict[str, int]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)


class MemoryStore:
    """Sums of this process. ``now_s`` is any clock; it may step back without harm."""

    def __init__(
        self, now_s: Callable[[], float], bucket_s: float = BUCKET_S, keep_s: float = KEEP_S
    ) -> None:
        self._now_s = now_s
        self._bucket_s = bucket_s
        self._kept_buckets = int(keep_s / bucket_s)
        self._scopes: dict[str, _Scope] = {}

    async def ping(self) -> None:
        """Always there."""

    async def add(self, scope: str, batch: Batch) -> bool:
        """Adds a batch unless its sequence was seen."""
        kept = self._scopes.setdefault(scope, _Scope())
        if batch.sequence <= kept.last.get(batch.writer, 0):
            return False
        bucket = max(int(self._now_s() // self._bucket_s), *kept.buckets, 0)
        merge(kept.buckets.setdefault(bucket, {}), batch.fields)
        kept.last[batch.writer] = batch.sequence
        for old in [b for b in kept.buckets if b <= bucket - self._kept_buckets]:
            del kept.buckets[old]
        return True

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        """Copies, newest first."""
        kept = self._scopes.get(scope, _Scope())
        newest = sorted(kept.buckets, reverse=True)[:MOST_BUCKETS]
        return tuple(dict(kept.buckets[bucket]) for bucket in newest)

    def forget(self, scope: str) -> None:
        """Nothing is held beside the sums themselves."""

    async def close(self) -> None:
        """Nothing to end."""
