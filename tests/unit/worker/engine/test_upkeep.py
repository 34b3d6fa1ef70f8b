"""For whom a drafter's state is kept, until when, and what a cohort may spend."""

from outrider_worker.engine.cohort import Cohort
from outrider_worker.engine.types import Request, SpeculationLimits
from outrider_worker.engine.upkeep import FEED_AFTER_ROUNDS, Upkeep
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from tests.support.engines import request

TRAITS = DrafterTraits("head", DrafterCost.AUTOREGRESSIVE, 8, writes_kv=True, max_context_tokens=90)


def _live(prompt_tokens: int = 10, **changes: object) -> Request:
    spec = request([3] * prompt_tokens, 100, **changes)  # type: ignore[arg-type]
    live = Request.from_spec(spec)
    live.drafter = "head"
    return live


def _on() -> Upkeep:
    upkeep = Upkeep(TRAITS)
    upkeep.look(speculating=True, share=0.0)
    return upkeep


def _round(upkeep: Upkeep, live: Request, drafts: bool, reach: int = 1) -> int:
    """One round; returns the positions it is fed, at most."""
    upkeep.round(live, reach)
    feed = upkeep.feed([live], [live] if drafts else [], 1000)
    return feed.rows if feed else 0


def test_who_drafts_is_fed_every_round() -> None:
    upkeep, live = _on(), _live()
    assert upkeep.begin(live) == 0
    assert [_round(upkeep, live, True, reach) for reach in (1, 5, 3)] == [1, 5, 3]


def test_an_idle_one_is_fed_now_and_then_and_dropped_in_the_end() -> None:
    upkeep, live = _on(), _live()
    upkeep.begin(live)
    fed = [_round(upkeep, live, False) for _ in range(64)]
    assert [place for place, rows in enumerate(fed, 1) if rows] == [FEED_AFTER_ROUNDS]
    assert fed[FEED_AFTER_ROUNDS - 1] == FEED_AFTER_ROUNDS
    assert not upkeep.has_state(live)
    assert upkeep.pools(live) == {}


def test_drafting_again_before_that_catches_up_and_starts_anew() -> None:
    upkeep, live = _on(), _live()
    upkeep.begin(live)
    for _ in range(20):
        _round(upkeep, live, False)
    assert _round(upkeep, live, True) == 21
    assert sum(_round(upkeep, live, False) > 0 for _ in range(63)) == 1
    assert upkeep.has_state(live)


def test_long_rounds_without_a_feed_do_not_outrun_the_ring() -> None:
    upkeep, live = _on(), _live()
    upkeep.begin(live)
    fed = [_round(upkeep, live, False, reach=9) for _ in range(30)]
    assert 0 < max(fed) <= 64 + 9


def test_a_feed_has_no_more_rows_than_its_round_can_commit() -> None:
    upkeep, first, second = _on(), _live(), _live()
    for live in (first, second):
        upkeep.begin(live)
        upkeep.round(live, 9)
    feed = upkeep.feed([first, second], [first, second], most_rows=7)
    assert feed is not None
    assert feed.rows == 7


def test_no_state_for_whom_it_is_no_use() -> None:
    upkeep = _on()
    other = _live()
    other.drafter = "ngram"
    refused = [
        _live(speculation=SpeculationLimits(enabled=False)),
        _live(speculation=SpeculationLimits(max_draft_tokens=0)),
        _live(prompt_tokens=95),
        other,
    ]
    assert [upkeep.begin(each) for each in refused] == [None] * 4
    assert Upkeep(None).begin(_live()) is None


def test_behind_its_own_context_a_request_is_dropped() -> None:
    upkeep, live = _on(), _live(85)
    upkeep.begin(live)
    live.committed = 85
    assert upkeep.room_tokens(live, 86) == 5
    live.committed = 91
    _round(upkeep, live, False)
    assert not upkeep.has_state(live)


def test_the_guard_leaves_nobody_a_state() -> None:
    upkeep, live = _on(), _live()
    upkeep.begin(live)
    upkeep.look(speculating=False, share=0.0, tripped=True)
    assert not upkeep.has_state(live)
    assert upkeep.begin(_live()) is None


def test_while_off_one_new_request_at_a_time_earns_its_rounds() -> None:
    upkeep = Upkeep(TRAITS)
    for _ in range(31):
        upkeep.look(speculating=False, share=1 / 32)
    assert upkeep.pool_of(_live()) is None
    upkeep.look(speculating=False, share=1 / 32)
    tried, late = _live(), _live()
    assert upkeep.begin(tried) == 0
    assert upkeep.begin(late) is None
    assert upkeep.trying
    assert upkeep.drafts(tried)
    rounds = 0
    while upkeep.drafts(tried):
        _round(upkeep, tried, True)
        rounds += 1
    assert rounds == 64
    for _ in range(63 * 32):
        upkeep.look(speculating=False, share=1 / 32)
    assert upkeep.begin(_live()) is None
    for _ in range(32):
        upkeep.look(speculating=False, share=1 / 32)
    assert upkeep.begin(_live()) == 0


def test_on_again_the_cohort_is_like_everybody() -> None:
    upkeep, tried = Upkeep(TRAITS), _live()
    for _ in range(32):
        upkeep.look(speculating=False, share=1 / 32)
    upkeep.begin(tried)
    upkeep.look(speculating=True, share=0.0)
    assert upkeep.drafts(tried)
    assert not upkeep.in_cohort(tried)


def test_a_share_that_is_no_number_earns_nothing() -> None:
    cohort = Cohort()
    for _ in range(100):
        cohort.earn(float("nan"))
    assert not cohort.join(_live())
