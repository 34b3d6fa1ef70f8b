"""What is drafted for the next round: how long, by whom, for which requests.

Knows: the drafters at hand, what a request and its class permit, how far each drafter is to be
fed. Does not know: how rounds are launched or judged.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from outrider_worker.engine.budget import Budgeter, DraftDecision, RoundShare, VerifyDecision
from outrider_worker.engine.commit import draft_room
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.feeding import DrafterFeed
from outrider_worker.engine.guard import Guard, Permission
from outrider_worker.engine.modes import DraftPlace
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import Request
from outrider_worker.engine.upkeep import Upkeep
from outrider_worker.speculate.drafter import Ask


@dataclass(frozen=True, slots=True)
class Pool:
    """Drafts of one drafter that a round may verify: of how many requests, and how many in all."""

    requests: int = 0
    tokens: int = 0


class Drafting:
    """Decides and makes drafts for the round to come."""

    def __init__(
        self,
        drafters: Drafters,
        guard: Guard,
        place: DraftPlace,
        vocab_size: int,
        max_rows: int,
    ) -> None:
        self.drafters = drafters
        stateful = drafters.stateful
        self.upkeep = Upkeep(stateful.traits if stateful else None)
        self._feeds = {name: DrafterFeed(host) for name, host in drafters.host.items()}
        self._guard = guard
        self._plain = RoundShare()
        self._budgeters = {
            traits.name: Budgeter(traits.name, traits.max_draft_tokens, max_rows, self._plain)
            for traits in drafters.traits
        }
        self._max_rows = max_rows
        self._vocab_size = vocab_size
        self._place = place

    def look(self, turn: Turn, requests: int) -> None:
        """How things stand, before anybody is let in: decides who shall have a drafter's state."""
        name, plan, guard = self.upkeep.name, turn.plan, self._guard
        if not name:
            return
        speculating = not guard.tripped and plan.draft_tokens(name, max(1, requests)) > 0
        share = guard.trial_share(turn.started_s) if guard.tripped else plan.probe.cohort_share
        self.upkeep.look(speculating, share, guard.tripped, requests > 0)

    def decide(self, turn: Turn, requests: Sequence[Request]) -> None:
        """Set how long the drafts made in this turn are; the guard is asked at most once."""
        names = dict.fromkeys(each.drafter for each in requests if each.drafter)
        if not names:
            return
        self._plain.open_round()
        permission = self._guard.permission(turn.started_s)
        for name in names:
            decision = self._decision(name, turn, len(requests), permission)
            if decision.tokens:
                turn.drafted[name] = decision
            turn.clamped |= decision.clamped

    def _decision(
        self, name: str, turn: Turn, requests: int, permission: Permission
    ) -> DraftDecision:
        """A drafter with a state is tried out by requests, the others by rounds."""
        budgeter = self._budgeters[name]
        if name != self.upkeep.name:
            return budgeter.next_draft(turn.plan, requests, permission)
        trying = self.upkeep.trying
        if self._guard.tripped:
            permission = Permission.TRIAL if trying else Permission.PLAIN
        return budgeter.next_draft(turn.plan, requests, permission, trying)

    def verify(self, turn: Turn, requests: int, pools: Mapping[str, Pool]) -> VerifyDecision:
        """Drafts verified in a round over so many requests: each drafter's part of its budget."""
        tokens, clamped = 0, False
        for name, pool in pools.items():
            if pool.tokens == 0:
                continue
            carried = turn.carried.get(name)
            if carried is None:
                continue
            part = self._budgeters[name].verify(
                turn.plan, requests, carried, pool.tokens, pool.requests
            )
            tokens, clamped = tokens + part.tokens, clamped or part.clamped
        return VerifyDecision(min(tokens, max(0, self._max_rows - requests)), clamped)

    def on_host(
        self, turn: Turn, requests: Sequence[Request], asynchronous: bool
    ) -> frozenset[str]:
        """Whose drafts are the host's work in this turn.

        Where the host has to work anyway, whoever can works there: it costs less.
        """
        able = {name for name in turn.drafted if name in self._feeds}
        bound = {name for name in able if name not in self.drafters.device or not asynchronous}
        if bound:
            return frozenset(able)
        return frozenset(name for name in able if self._cheaper_on_host(name, turn, requests))

    def _cheaper_on_host(self, name: str, turn: Turn, requests: Sequence[Request]) -> bool:
        count = max(1, len(requests))
        context_tokens = sum(request.committed for request in requests) / count
        tokens = turn.drafted[name].tokens
        planned_rows = turn.plan.target_rows(name, count, tokens)
        return self._place.on_host(count, min(planned_rows - count, count * tokens), context_tokens)

    def asks(self, requests: Sequence[Request], turn: Turn, name: str) -> list[int]:
        """Drafts that each request may get of one drafter: its room, its own cap, its class's."""
        return [self._ask_tokens(request, turn, name) for request in requests]

    def draft_on_host(
        self,
        requests: Sequence[Request],
        turn: Turn,
        names: Collection[str],
        now_s: Callable[[], float],
    ) -> None:
        """Feed the host drafters in `names` what they have missed and take their drafts."""
        for name, feed in self._feeds.items():
            own = [request for request in requests if request.drafter == name]
            if name in names:
                self._draft_on_host(own, turn, name, now_s)
            else:
                feed.rest(own)

    def _draft_on_host(
        self, requests: Sequence[Request], turn: Turn, name: str, now_s: Callable[[], float]
    ) -> None:
        feed = self._feeds[name]
        tokens_of = dict(zip(requests, self.asks(requests, turn, name), strict=True))
        asking = [request for request in requests if tokens_of[request]]
        feed.rest([request for request in requests if not tokens_of[request]])
        if not asking:
            turn.drafted.pop(name, None)
            return
        started_s = now_s()
        feed.catch_up(asking)
        asking = [request for request in asking if not self._hand_over(request, feed)]
        fed_s = now_s()
        drafts = feed.propose([Ask(each.spec.key, tokens_of[each]) for each in asking])
        turn.feed_s += fed_s - started_s
        turn.draft_s += now_s() - fed_s
        for request, draft in zip(asking, drafts, strict=True):
            request.draft = draft.cut(tokens_of[request], self._vocab_size)
        if not asking:
            turn.drafted.pop(name, None)

    def _hand_over(self, request: Request, feed: DrafterFeed) -> bool:
        """Whether its drafter can do no more for it: then another one goes on.

        Nothing is in flight and no draft at hand, so that all that comes is counted as the other's.
        """
        if not feed.given_up(request.spec.key):
            return False
        feed.forget(request.spec.key)
        request.drafter = self.drafters.after_prediction(request.spec)
        return True

    def forget(self, request: Request) -> None:
        """The request has ended or was preempted."""
        self.upkeep.forget(request)
        feed = self._feeds.get(request.drafter)
        if feed is not None:
            feed.forget(request.spec.key)

    def observe(self, record: RoundRecord) -> None:
        """Learn what drafting here or there costs."""
        self._place.observe(record)

    def _ask_tokens(self, request: Request, turn: Turn, name: str) -> int:
        decision = turn.drafted.get(name)
        if decision is None or request.drafter != name:
            return 0
        spec, planned = request.spec, decision.tokens
        class_cap = turn.plan.class_caps.get(spec.request_class, planned)
        tokens = draft_room(request, min(planned, class_cap, spec.speculation.cap(planned)))
        if name != self.upkeep.name:
            return tokens
        if not self.upkeep.drafts(request):
            return 0
        known = request.committed + request.ahead + 1
        return max(0, min(tokens, self.upkeep.room_tokens(request, known)))
