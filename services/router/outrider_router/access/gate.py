"""The way in: a request passes its key's limits, then waits for its places.

The one object that the API layer talks to about limits.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outrider_router.access.admission import Admission, Place
from outrider_router.access.keys import ANONYMOUS, KeyPolicy, KeyRing
from outrider_router.access.tenant import Tenant, Usage
from outrider_router.metrics import RequestRecord
from outrider_runtime.clock import Clock


@dataclass(frozen=True)
class Visit:
    """One admitted request: its places and what it costs its key."""

    place: Place
    usage: Usage
    clock: Clock

    def charge_prompt(self, tokens: int) -> None:
        """Count prompt tokens once they are known.

        Raises:
            Overloaded: too many are in flight, or the key has used its own.
        """
        self.usage.charge_prompt(tokens, self.clock.monotonic_s())
        self.place.charge_prompt(tokens)


class Gate:
    """All keys and the line behind them.

    Args:
        policies: keys; none lets everybody in as `anonymous`.
        admission: places and the line for them.
        clock: where time comes from.
        wait_limit_s: how long a request may stand in line.
    """

    def __init__(
        self,
        policies: Iterable[KeyPolicy],
        admission: Admission,
        clock: Clock,
        wait_limit_s: float,
    ) -> None:
        self._ring = KeyRing(policies)
        self._clock = clock
        self._wait_limit_s = wait_limit_s
        self._tenants = {p.sha256: Tenant(p) for p in (*self._ring.policies, ANONYMOUS)}
        self.admission = admission

    @property
    def needs_key(self) -> bool:
        """Whether there are keys at all."""
        return bool(self._ring.policies)

    def tenant(self, presented: str) -> Tenant | None:
        """Who shows this key; None for a wrong one, `anonymous` where none is needed."""
        policy = self._ring.find(presented) if self.needs_key else ANONYMOUS
        return self._tenants[policy.sha256] if policy else None

    @asynccontextmanager
    async def visit(
        self, tenant: Tenant, choices: int, record: RequestRecord
    ) -> AsyncIterator[Visit]:
        """Be in, for as long as the block runs.

        Raises:
            Overloaded: a limit of the key or of the router is reached.
            ShuttingDown: the router stops while the request waits.
        """
        started_s = self._clock.monotonic_s()
        with tenant.request(choices, started_s) as usage:
            place = await self.admission.wait(
                tenant.name, tenant.weight, choices, self._wait_limit_s
            )
            with place:
                record.metrics.queue_time.observe(self._clock.monotonic_s() - started_s)
                try:
                    yield Visit(place, usage, self._clock)
                finally:
                    usage.charge_answer(record.completion_tokens, self._clock.monotonic_s())
