"""Cost tables as the store shares them: the identity they belong to, and their text.

Knows when two workers measure the same thing, and that what comes from a store is checked like a
hello before it is believed. Does not know what is computed from a table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, astuple, replace
from functools import lru_cache
from typing import Any

from outrider_planner.core.cost import CostTracker
from outrider_planner.core.events import Effect, ReadCosts, RefuseStored, StoreCosts
from outrider_planner.core.hellos import HelloRefusedError, check_hello
from outrider_planner.core.types import (
    CostCurve,
    CostTable,
    DraftCostGrid,
    DrafterCosts,
    EngineIdentity,
    Hello,
)
from outrider_planner.core.worker_state import WorkerState

MOST_TABLE_BYTES = 1 << 20
# Heals a store that was flushed, and keeps tables in use from expiring.
STORE_AGAIN_S = 600.0
_CURVE = ("rows", "median_us", "spread_us", "samples")
_GRID = ("requests", "draft_tokens", "median_us", "spread_us", "samples")


class CostTableError(ValueError):
    """A text that is no cost table, or none that fits this worker."""


class SharedCosts:
    """What this planner stores and takes: one table per identity, the first one measured."""

    def __init__(self) -> None:
        self._stored_s: dict[str, float] = {}

    def on_hello(self, worker: WorkerState, now_s: float) -> list[Effect]:
        """A measured table is stored; a worker without one asks for the stored one."""
        if worker.hello.cost_table is None:
            return [] if worker.stored_table else [ReadCosts(cost_digest(worker.hello.identity))]
        return self._store(worker, now_s)

    def on_read_time(self, workers: Collection[WorkerState], now_s: float) -> list[Effect]:
        """Tables still missed are asked for again, and those in use stored again now and then."""
        used = {cost_digest(worker.hello.identity): worker for worker in workers}
        self._stored_s = {d: s for d, s in self._stored_s.items() if d in used}
        missing = {
            cost_digest(worker.hello.identity) for worker in workers if not worker.costs.has_table
        }
        effects: list[Effect] = [ReadCosts(digest) for digest in sorted(missing)]
        for worker in workers:
            effects += self._store(worker, now_s)
        return effects

    def on_stored(
        self, digest: str, text: str | None, workers: Collection[WorkerState]
    ) -> list[Effect]:
        """Gives a stored table to the workers of its identity that have none."""
        waiting = [
            worker
            for worker in workers
            if not worker.costs.has_table and cost_digest(worker.hello.identity) == digest
        ]
        if text is None or not waiting:
            return []
        try:
            table = table_from_json(text)
            for worker in waiting:
                worker.costs = CostTracker(with_table(worker.hello, table), worker.ladder)
                worker.stored_table, worker.warm_said, worker.dirty = digest, False, True
        except CostTableError as error:
            return [RefuseStored(digest, str(error))]
        return []

    def _store(self, worker: WorkerState, now_s: float) -> list[Effect]:
        table, digest = worker.hello.cost_table, cost_digest(worker.hello.identity)
        due = now_s - self._stored_s.get(digest, float("-inf")) >= STORE_AGAIN_S
        if table is None or not table.target or not due:
            return []
        self._stored_s[digest] = now_s
        return [StoreCosts(digest, table_to_json(table))]


@lru_cache(maxsize=4096)
def cost_digest(identity: EngineIdentity) -> str:
    """Names everything that makes measured times comparable, device and row ladder included."""
    parts = json.dumps(astuple(identity), separators=(",", ":"))
    return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()


def table_to_json(table: CostTable) -> str:
    """The canonical text: equal tables have equal texts."""
    return json.dumps(asdict(table), sort_keys=True, separators=(",", ":"))


def table_from_json(text: str) -> CostTable:
    """The table of a text.

    Raises:
        CostTableError: too long, or not of the shape that ``table_to_json`` writes.
    """
    if len(text) > MOST_TABLE_BYTES:
        raise CostTableError(f"a cost table is longer than {MOST_TABLE_BYTES} bytes")
    try:
        return table_from_values(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise CostTableError(f"no cost table: {error}") from error


def table_from_values(values: Any) -> CostTable:
    """The table of an object as JSON holds it. Raises ``CostTableError``."""
    try:
        return CostTable(
            target=tuple(_curve(item) for item in values["target"]),
            drafters=tuple(_drafter(item) for item in values.get("drafters", ())),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CostTableError(f"no cost table: {error!r}") from error


def with_table(hello: Hello, table: CostTable) -> Hello:
    """The hello of a worker that measured this table.

    Raises:
        CostTableError: it does not fit the worker's limits.
    """
    if not table.target:
        raise CostTableError("a cost table needs at least one target curve")
    found = replace(hello, cost_table=table)
    try:
        check_hello(found)
    except HelloRefusedError as error:
        raise CostTableError(str(error)) from error
    return found


def _drafter(values: Mapping[str, Any]) -> DrafterCosts:
    return DrafterCosts(
        drafter=str(values["drafter"]),
        feed=tuple(_curve(item) for item in values.get("feed", ())),
        draft=tuple(_grid(item) for item in values.get("draft", ())),
    )


def _curve(values: Mapping[str, Any]) -> CostCurve:
    columns = {name: _whole_numbers(values.get(name, ())) for name in _CURVE}
    return CostCurve(_whole(values["context_tokens"]), **columns)


def _grid(values: Mapping[str, Any]) -> DraftCostGrid:
    columns = {name: _whole_numbers(values.get(name, ())) for name in _GRID}
    return DraftCostGrid(_whole(values["context_tokens"]), **columns)


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise CostTableError("columns must be lists")
    return tuple(_whole(value) for value in values)


def _whole(value: Any) -> int:
    """Counts and microseconds; 2^53 and beyond is no time that was measured."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise CostTableError(f"{value!r} is no count or time in microseconds")
    return value
