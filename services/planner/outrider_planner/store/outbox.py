"""What waits to be stored: one frozen batch per scope in flight, new sums behind it.

Knows the sender's half of exactly-once: a batch keeps its content and sequence until it is
acknowledged. Pure bookkeeping, bounded because sums of the same field add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_planner.core.sums import merge
from outrider_planner.store.base import Batch


@dataclass(slots=True)
class _Lane:
    waiting: dict[str, int] = field(default_factory=dict)
    sent: Batch | None = None
    sequence: int = 0


class Outbox:
    """Batches of one writer incarnation."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self._lanes: dict[str, _Lane] = {}

    def put(self, scope: str, fields: Mapping[str, int]) -> None:
        """Adds sums behind whatever is in flight."""
        merge(self._lanes.setdefault(scope, _Lane()).waiting, fields)

    def scopes(self) -> list[str]:
        """Scopes with something to send."""
        return [name for name, lane in self._lanes.items() if lane.sent or lane.waiting]

    def batch(self, scope: str) -> Batch | None:
        """The batch to send: the unanswered one, unchanged, or a new one."""
        lane = self._lanes.get(scope)
        if lane is None:
            return None
        if lane.sent is None and lane.waiting:
            lane.sequence += 1
            lane.sent = Batch(self._writer, lane.sequence, dict(lane.waiting))
            lane.waiting = {}
        return lane.sent

    def acknowledge(self, scope: str, batch: Batch) -> None:
        """The store answered for this batch, whether it was new to it or not."""
        lane = self._lanes[scope]
        if lane.sent is not None and lane.sent.sequence == batch.sequence:
            lane.sent = None
