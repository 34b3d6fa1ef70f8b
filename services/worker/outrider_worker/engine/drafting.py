"""What is drafted for the next round: how long, by whom, for which requests.

Knows: the drafters at hand (on the host, on the device, or one that is both), what a request and
its class permit. Does not know: how rounds are launched or judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_worker.engine.budget import NO_DRAFTS, Budgeter
from outrider_worker.engine.commit import draft_room
from outrider_worker.engine.feeding import DrafterFeed
from outrider_worker.engine.guard import Permission
from outrider_worker.engine.modes import DraftPlace
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import Request
from outrider_worker.speculate.device import DeviceDrafter
from outrider_worker.speculate.drafter import Ask, Drafter, DrafterTraits


@dataclass(frozen=True)
class Drafters:
    """A worker's drafter: on the host, on the device, or (n-gram) the same one in both places."""

    host: Drafter | None = None
    device: DeviceDrafter | None = None

    @property
    def name(self) -> str:
        """Empty without a drafter."""
        return self.traits.name if self.traits else ""

    @property
    def traits(self) -> DrafterTraits | None:
        """What is declared of it; the host's, where it works in both places."""
        drafter = self.host or self.device
        return drafter.traits if drafter else None

    @property
    def max_tokens(self) -> int:
        """K; 0 without a drafter."""
        return self.traits.max_draft_tokens if self.traits else 0


class Drafting:
    """Decides and makes drafts for the round to come."""

    def __init__(
        self,
        drafters: Drafters,
        budgeter: Budgeter,
        place: DraftPlace,
        vocab_size: int,
    ) -> None:
        self.name = drafters.name
        self.feed = DrafterFeed(drafters.host) if drafters.host else None
        self._has_device = drafters.device is not None
        self._budgeter = budgeter
        self._vocab_size = vocab_size
        self._place = place

    def decide(self, turn: Turn, requests: int, permission: Callable[[], Permission]) -> None:
        """Set how long the drafts made in this turn are; the guard is asked at most once."""
        turn.drafted = NO_DRAFTS
        if not self.name or not requests:
            return
        turn.drafted = self._budgeter.next_draft(turn.plan, requests, permission())
        turn.clamped |= turn.drafted.clamped

    def on_host(self, turn: Turn, requests: Sequence[Request], asynchronous: bool) -> bool:
        """Whether this turn's drafts are the host's work."""
        if turn.drafted.tokens == 0 or self.feed is None:
            return False
        if not self._has_device or not asynchronous:
            return True
        count = max(1, len(requests))
        context_tokens = sum(request.committed for request in requests) / count
        planned_rows = turn.plan.target_rows(self.name, count, turn.drafted.tokens)
        verify_tokens = min(planned_rows - count, count * turn.drafted.tokens)
        return self._place.on_host(count, verify_tokens, context_tokens)

    def asks(self, requests: Sequence[Request], turn: Turn) -> list[int]:
        """Drafts that each request may get: its room, its own cap and its class's."""
        return [self._ask_tokens(request, turn) for request in requests]

    def draft_on_host(
        self, requests: Sequence[Request], turn: Turn, now_s: Callable[[], float]
    ) -> None:
        """Feed the host drafter what it has missed and take its drafts."""
        assert self.feed is not None
        tokens_of = dict(zip(requests, self.asks(requests, turn), strict=True))
        asking = [request for request in requests if tokens_of[request]]
        self.feed.rest([request for request in requests if not tokens_of[request]])
        if not asking:
            turn.drafted = NO_DRAFTS
            return
        started_s = now_s()
        self.feed.catch_up(asking)
        fed_s = now_s()
        drafts = self.feed.propose([Ask(each.spec.key, tokens_of[each]) for each in asking])
        turn.feed_s += fed_s - started_s
        turn.draft_s += now_s() - fed_s
        for request, draft in zip(asking, drafts, strict=True):
            request.draft = draft.cut(tokens_of[request], self._vocab_size)

    def rest(self, requests: Sequence[Request]) -> None:
        """Nothing is drafted on the host this turn."""
        if self.feed is not None:
            self.feed.rest(requests)

    def observe(self, record: RoundRecord) -> None:
        """Learn what drafting here or there costs."""
        self._place.observe(record)

    def _ask_tokens(self, request: Request, turn: Turn) -> int:
        spec, planned = request.spec, turn.drafted.tokens
        class_cap = turn.plan.class_caps.get(spec.request_class, planned)
        return draft_room(request, min(planned, class_cap, spec.speculation.cap(planned)))
