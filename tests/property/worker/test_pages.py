"""Pages under random traffic: one state each, the right holders, the right content."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Request
from tests.support.paper_engine import PaperEngine, PaperPool, spec_of

PAGE = 4
POOL_PAGES = 12

# Few tokens and few lengths: texts begin alike, part and meet again.
texts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=24)
salts = st.sampled_from([b"", b"a"])


class PagesByHand(RuleBasedStateMachine):
    """Every operation of the page account in any order, checked against a pool of plain ints."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(PAGE, lookahead_pools={"eagle": 1})
        self.account = PageAccount(POOL_PAGES + 1, PAGE, self.cache)
        self.pool = PaperPool(self.account)
        self.live: list[Request] = []

    @rule(text=texts, salt=salts, room=st.integers(1, 16))
    def begin(self, text: list[int], salt: bytes, room: int) -> None:
        request = Request.from_spec(spec_of(text, room, salt=salt))
        hit = self.cache.match(text, salt, ["eagle"])
        assert hit.tokens < len(text)
        assert hit.pool_tokens.get("eagle", 0) <= max(0, hit.tokens - PAGE)
        spare_pages, cost = self.account.spare_pages, self.account.cost_pages(len(text), hit)
        if cost > spare_pages:
            return
        self.account.adopt(request, hit)
        assert self.account.try_reserve(request, len(text))
        assert self.account.spare_pages == spare_pages - cost
        self.live.append(request)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), slots=st.integers(0, 60))
    def grow(self, data: st.DataObject, slots: int) -> None:
        request = data.draw(st.sampled_from(self.live))
        before = (list(request.pages), request.reserved, self.account.spare_pages)
        if self.account.try_reserve(request, slots):
            assert request.reserved >= min(slots, request.limit_tokens)
            self.pool.spoil(request, request.committed, request.reserved)
        else:
            assert (request.pages, request.reserved, self.account.spare_pages) == before

    @precondition(lambda self: self.live)
    @rule(data=st.data(), publish=st.booleans())
    def commit(self, data: st.DataObject, publish: bool) -> None:
        request = data.draw(st.sampled_from(self.live))
        known = len(request.token_ids)
        emitted = min(data.draw(st.integers(0, 6)), request.reserved - known, request.room_tokens)
        request.token_ids += [1 + known % 2] * max(0, emitted)
        committed = data.draw(st.integers(request.committed, len(request.token_ids)))
        committed = min(committed, request.reserved)
        self.pool.write(request, request.committed, committed)
        request.committed = committed
        if publish:
            self.account.publish(request, {"eagle": data.draw(st.integers(0, committed))})

    @precondition(lambda self: self.live)
    @rule(data=st.data(), slots=st.integers(0, 40))
    def trim(self, data: st.DataObject, slots: int) -> None:
        request = data.draw(st.sampled_from(self.live))
        self.account.trim(request, slots)
        assert request.reserved <= max(slots, request.committed)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.live))
        self.live.remove(request)
        self.account.release(request)
        assert (request.committed, request.reserved, request.pages) == (0, 0, [])

    @invariant()
    def every_page_has_one_state_and_every_entry_its_text(self) -> None:
        self.account.check(self.live)
        for request in self.live:
            self.pool.check(request)

    def teardown(self) -> None:
        for request in list(self.live):
            self.account.release(request)
        self.account.check([])
        assert self.account.used_pages == 0
        while self.account.cached_pages:
            self.account._free.append(self.cache.evict())
        assert self.account.free_pages == self.account.capacity_pages
        assert not self.cache._roots
        assert not self.cache._progress


class PagesByTurns(RuleBasedStateMachine):
    """Turns of the engine with submits, aborts and preemptions at every point in between."""

    def __init__(self) -> None:
        super().__init__()
        limits = SchedulerLimits(3, max_context_tokens=48, max_rows_per_forward=8)
        self.engine = PaperEngine.of(POOL_PAGES, PAGE, limits=limits, accept=self._accepted)
        self.accepted_tokens = 0

    def _accepted(self, _request: Request, granted: int) -> int:
        return min(granted, self.accepted_tokens)

    @rule(text=texts, salt=salts, room=st.integers(1, 20))
    def submit(self, text: list[int], salt: bytes, room: int) -> None:
        self.engine.submit(spec_of(text, room, salt=salt))

    @rule(drafts=st.integers(0, 7), accepted=st.integers(0, 7), ahead=st.booleans())
    def turn(self, drafts: int, accepted: int, ahead: bool) -> None:
        self.accepted_tokens = accepted
        self.engine.draft_tokens, self.engine.running_ahead = drafts, ahead
        self.engine.turn()
        assert len(self.engine.scheduler.running) <= 3
        seats = [request.seat for request in self.engine.scheduler.running]
        assert len(set(seats)) == len(seats)

    @precondition(lambda self: not self.engine.scheduler.idle)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.scheduler.remove(data.draw(st.sampled_from(self.engine.scheduler.everyone())))

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.scheduler.preempt(data.draw(st.sampled_from(self.engine.scheduler.running)))

    @invariant()
    def every_page_has_one_state_and_every_entry_its_text(self) -> None:
        self.engine.check()

    def teardown(self) -> None:
        self.engine.run(most_turns=1000)
        assert self.engine.pages.used_pages == 0


TestPagesByHand = PagesByHand.TestCase
TestPagesByHand.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPagesByTurns = PagesByTurns.TestCase
TestPagesByTurns.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
