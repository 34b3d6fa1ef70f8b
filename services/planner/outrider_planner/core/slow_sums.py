"""What the store holds of every scope in use, weighed and ready for estimates.

Knows which scopes a worker's statistics are in. Does not know when they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from outrider_planner.core.evidence import SlowCounts, pool_bands
from outrider_planner.core.hellos import statistics_digest
from outrider_planner.core.sums import FLEET_CLASS, from_fields, weigh
from outrider_planner.core.types import Hello


class SlowSums:
    """By scope; one that was never read is not there, one without sums is empty."""

    def __init__(self) -> None:
        self._sums: dict[str, SlowCounts] = {}

    def take(self, scope: str, buckets_newest_first: Sequence[Mapping[str, float]]) -> bool:
        """Takes what was read of a scope; True the first time."""
        first = scope not in self._sums
        self._sums[scope] = pool_bands(from_fields(weigh(buckets_newest_first)))
        return first

    def of(self, hello: Hello) -> tuple[SlowCounts, SlowCounts]:
        """The deployment's sums and the fleet's, empty where nothing was read."""
        own, fleet = scopes(hello)
        return self._sums.get(own, {}), self._sums.get(fleet, {})

    def unread(self, hello: Hello) -> list[str]:
        """Scopes of a worker that were not read yet."""
        return [scope for scope in scopes(hello) if scope not in self._sums]

    def keep_only(self, used: Collection[str]) -> list[str]:
        """Drops all others; returns them."""
        unused = sorted(self._sums.keys() - set(used))
        for scope in unused:
            del self._sums[scope]
        return unused


def scopes(hello: Hello) -> tuple[str, str]:
    """The store's scopes for a worker: its deployment's, and the fleet's for its target."""
    digest = statistics_digest(hello.identity)
    return f"{hello.deployment}:{digest}", f"{FLEET_CLASS}:{digest}"
