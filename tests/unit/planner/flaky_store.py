"""A store that is away, refuses, or loses its answers, as told."""

from collections.abc import Mapping

from outrider_planner.store.base import (
    Batch,
    Page,
    StoreRefusedError,
    StoreUnavailableError,
    Value,
)
from outrider_planner.store.memory import MemoryStore


class FlakyStore(MemoryStore):
    """``refused``, ``unanswered`` and ``broken`` name scopes; ``away`` is everything at once."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.away = False
        self.lose_answer = False
        self.closed = False
        self.refused: set[str] = set()
        self.unanswered: set[str] = set()
        self.broken: set[str] = set()
        self.sent: list[Batch] = []
        self.forgotten: list[str] = []
        self.asked = 0

    async def ping(self) -> None:
        self._fail("")

    async def add(self, scope: str, batch: Batch) -> bool:
        self._fail(scope)
        self.sent.append(batch)
        applied = await super().add(scope, batch)
        if self.lose_answer:
            raise StoreUnavailableError("no answer")
        return applied

    async def buckets(self, scope: str) -> tuple[Mapping[str, int], ...]:
        self._fail(scope)
        return await super().buckets(scope)

    async def keep(self, key: str, value: Value, keep_s: float | None) -> Value:
        self._fail(key)
        return await super().keep(key, value, keep_s)

    async def append(self, log: str, page: Page, most_entries: int) -> bool:
        self._fail(log)
        return await super().append(log, page, most_entries)

    def forget(self, scope: str) -> None:
        self.forgotten.append(scope)

    async def close(self) -> None:
        self.closed = True

    def _fail(self, scope: str) -> None:
        self.asked += 1
        if self.away or scope in self.unanswered:
            raise StoreUnavailableError("away")
        if scope in self.refused:
            raise StoreRefusedError("no")
        if scope in self.broken:
            raise KeyError("a fault of the store's own")
