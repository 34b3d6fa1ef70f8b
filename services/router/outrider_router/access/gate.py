"""The way in: a request passes its key's limits, then waits for its places.

The one object that the API layer talks to about limits.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from outrider_router.access.admission import Admission, Place
from outrider_router.access.fair_queue import Claim
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
        # The place gives back what it is charged; what a key has used stays used.
        self.place.charge_prompt(tokens)
        self.usage.charge_prompt(tokens, self.clock.monotonic_s())


class Gate:
    """All keys and the line behind them.

    Args:
        policies: the keys.
        needs_key: False lets everybody in as `anonymous`; it holds for good, whatever keys there
            are later.
        admission: places and the line for them.
        clock: where time comes from.
        wait_limit_s: how long a request may stand in line.

    Raises:
        ConfigurationError: two keys are the same, or have the same name.
    """

    def __init__(
        self,
        policies: Iterable[KeyPolicy],
        needs_key: bool,
        admission: Admission,
        clock: Clock,
        wait_limit_s: float,
    ) -> None:
        self.needs_key = needs_key
        self._clock = clock
        self._wait_limit_s = wait_limit_s
        self._ring = KeyRing(())
        self._tenants: dict[str, Tenant] = {}
        self._anonymous = Tenant(ANONYMOUS)
        self.admission = admission
        self.take_keys(policies)

    def take_keys(self, policies: Iterable[KeyPolicy]) -> bool:
        """Let in these keys from now on, and no others; True if that changes anything.

        A key that stays keeps what it has used; requests of one that goes may end.

        Raises:
            ConfigurationError: two of them are the same, or have the same name; nothing changes.
        """
        ring = KeyRing(policies)
        if ring.policies == self._ring.policies:
            return False
        known = self._tenants
        self._tenants = {p.sha256: known.get(p.sha256) or Tenant(p) for p in ring.policies}
        for policy in ring.policies:
            self._tenants[policy.sha256].obey(policy)
        self._ring = ring
        return True

    def tenant(self, presented: str) -> Tenant | None:
        """Who shows this key; None for a wrong one, `anonymous` where none is needed."""
        if not self.needs_key:
            return self._anonymous
        policy = self._ring.find(presented)
        return self._tenants[policy.sha256] if policy else None

    def most_choices(self, tenant: Tenant) -> int:
        """Choices beyond which no request of the key could ever get in."""
        own, of_all = tenant.policy.concurrent, self.admission.max_choices
        return of_all if own is None else min(own, of_all)

    @contextmanager
    def errand(self, tenant: Tenant) -> Iterator[None]:
        """Be in for work of the router's own: as one request with one choice, but never in line.

        Raises:
            Overloaded: a limit of the key or of the router is reached.
        """
        with tenant.request(1, self._clock.monotonic_s()), self.admission.admit(1):
            yield

    @asynccontextmanager
    async def visit(
        self, tenant: Tenant, choices: int, priority: int, record: RequestRecord
    ) -> AsyncIterator[Visit]:
        """Be in, for as long as the block runs; `choices` are `most_choices` at most.

        Raises:
            Overloaded: a limit of the key or of the router is reached.
            ShuttingDown: the router stops while the request waits.
        """
        started_s = self._clock.monotonic_s()
        with tenant.request(choices, started_s) as usage:
            claim = Claim(tenant.name, tenant.weight, choices, priority)
            with await self.admission.wait(claim, self._wait_limit_s) as place:
                record.metrics.queue_time.observe(self._clock.monotonic_s() - started_s)
                try:
                    yield Visit(place, usage, self._clock)
                finally:
                    usage.charge_answer(record.completion_tokens, self._clock.monotonic_s())
