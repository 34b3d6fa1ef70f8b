"""Keeps host drafters fed, as late as possible, and lets go of them while speculation is off.

A host drafter's state is a function of the committed tokens, which the request keeps anyway. So
nothing is fed while nobody asks (*off, idle*), what was missed is handed over before the next
proposal, and after `DROP_AFTER_ROUNDS` rounds without one the state is released (*off, dropped*)
and would be made anew. Off costs nothing, and coming back costs no acceptance.

Knows: which tokens each drafter has seen. Does not know: plans, rounds, the device.
"""

from collections.abc import Sequence

from outrider_worker.engine.types import Draft, Request, RequestKey
from outrider_worker.speculate.drafter import Ask, Drafter, GivesUp, ReadsRequests

DROP_AFTER_ROUNDS = 64


class DrafterFeed:
    """One host drafter, and how far each request's text has been handed to it."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._fed_tokens: dict[RequestKey, int] = {}
        self._idle_rounds: dict[RequestKey, int] = {}

    def catch_up(self, requests: Sequence[Request]) -> None:
        """Hand over everything committed that the drafter has not seen."""
        for request in requests:
            key, known = request.spec.key, len(request.token_ids)
            fed = self._fed_tokens.get(key)
            if fed is None:
                if isinstance(self._drafter, ReadsRequests):
                    self._drafter.begin(request.spec)
                self._drafter.prefill(key, request.token_ids)
            elif fed < known:
                self._drafter.observe(key, request.token_ids[fed:])
            self._fed_tokens[key] = known
            self._idle_rounds[key] = 0

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Drafts for requests that are caught up."""
        return self._drafter.propose(asks)

    def given_up(self, key: RequestKey) -> bool:
        """Whether the drafter can do no more for a request that is caught up."""
        return isinstance(self._drafter, GivesUp) and self._drafter.given_up(key)

    def rest(self, requests: Sequence[Request]) -> None:
        """A round in which nothing is drafted for these requests."""
        for request in requests:
            key = request.spec.key
            if key not in self._fed_tokens:
                continue
            self._idle_rounds[key] += 1
            if self._idle_rounds[key] >= DROP_AFTER_ROUNDS:
                self.forget(key)

    def forget(self, key: RequestKey) -> None:
        """The request has ended, was preempted, or has drafted nothing for long."""
        if self._fed_tokens.pop(key, None) is not None:
            self._drafter.release(key)
            del self._idle_rounds[key]
