"""Who waits, enters, is prefilled and gives way, one situation at a time."""

from dataclasses import replace

import pytest

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.engine.types import (
    NO_SEAT,
    NULL_PAGE,
    Draft,
    FailureCode,
    Request,
    RequestKey,
    RequestRefused,
)
from tests.support.paper_engine import PaperEngine, spec_of

PAGE = 16


class Desk:
    """A scheduler whose requests are moved on by hand."""

    def __init__(self, pages: int = 20, *, cached: bool = False, **limits: int) -> None:
        self.pages = PageAccount(pages + 1, PAGE, PrefixCache(PAGE, enabled=cached))
        sizes = {"max_running_requests": 4, "max_context_tokens": 512, **limits}
        self.scheduler = Scheduler(SchedulerLimits(**sizes), self.pages)

    def submit(self, *sizes: int, max_tokens: int = 8) -> list[Request]:
        """Requests with prompts of these sizes that have nothing in common."""
        return [self.scheduler.submit(spec_of([100 + size] * size, max_tokens)) for size in sizes]

    def decode(self, *sizes: int, max_tokens: int = 30) -> list[Request]:
        """Requests that have just emitted their first token."""
        requests = self.submit(*sizes, max_tokens=max_tokens)
        assert self.scheduler.admit() == requests
        for request in requests:
            request.committed = len(request.token_ids)
            request.token_ids.append(7)
            request.prefilled = True
        return requests

    def emit(self, request: Request) -> None:
        """One round without drafts."""
        request.committed = len(request.token_ids)
        request.token_ids.append(7)

    def refusal(self, prompt: int, max_tokens: int = 1) -> FailureCode:
        with pytest.raises(RequestRefused) as refused:
            self.scheduler.submit(spec_of([3] * prompt, max_tokens))
        return refused.value.failure.code


def test_what_can_never_fit_is_refused_at_once() -> None:
    desk = Desk(pages=4, max_context_tokens=128)
    assert desk.refusal(100, 29) is FailureCode.TOO_LONG
    assert desk.refusal(60, 5) is FailureCode.TOO_LONG
    desk.submit(60, max_tokens=4)
    assert desk.scheduler.waiting_requests == 1


def test_the_line_is_bounded_in_requests_and_in_tokens() -> None:
    desk = Desk(max_waiting_requests=2, max_waiting_prompt_tokens=50)
    desk.submit(40)
    assert desk.refusal(11) is FailureCode.OVERLOADED
    desk.submit(10)
    assert desk.scheduler.waiting_prompt_tokens == 50
    assert desk.refusal(1) is FailureCode.OVERLOADED


def test_who_waits_alone_may_be_longer_than_the_line() -> None:
    desk = Desk(max_waiting_prompt_tokens=50)
    desk.submit(60)
    assert desk.refusal(1) is FailureCode.OVERLOADED
    desk.scheduler.admit()
    desk.submit(60)


def test_a_used_id_is_the_requests_fault() -> None:
    desk = Desk()
    (request,) = desk.submit(3)
    with pytest.raises(RequestRefused, match="in use"):
        desk.scheduler.submit(request.spec)


def test_first_come_first_served_and_nobody_overtakes_for_memory() -> None:
    desk = Desk(pages=6)
    big, bigger, small = desk.submit(40, 56, 2)
    assert desk.scheduler.admit() == [big]
    assert desk.scheduler.admit() == []
    desk.scheduler.remove(big)
    assert desk.scheduler.admit() == [bigger, small]


def test_a_request_enters_with_slots_for_all_its_known_tokens_and_no_more() -> None:
    desk = Desk()
    (request,) = desk.submit(40, max_tokens=200)
    desk.scheduler.admit()
    assert (request.committed, request.reserved, len(request.pages)) == (0, 40, 3)


def test_the_lowest_free_seat_is_taken() -> None:
    desk = Desk(max_running_requests=3)
    first, second, third, fourth = desk.submit(1, 2, 3, 4)
    desk.scheduler.admit()
    assert [request.seat for request in (first, second, third, fourth)] == [0, 1, 2, NO_SEAT]
    desk.scheduler.remove(second)
    assert second.seat == NO_SEAT
    desk.scheduler.admit()
    assert fourth.seat == 1


def test_prefill_stays_within_its_chunk_oldest_first() -> None:
    desk = Desk(max_rows_per_forward=64, prefill_chunk_tokens=20)
    first, second, _third = desk.submit(12, 30, 5)
    desk.scheduler.admit()
    chunks = desk.scheduler.prefill_chunks()
    assert [(c.request, c.start, c.tokens, c.completes) for c in chunks] == [
        (first, 0, 12, True),
        (second, 0, 8, False),
    ]
    first.committed, first.prefilled, second.committed = 12, True, 8
    chunks = desk.scheduler.prefill_chunks()
    assert [(c.request, c.start, c.tokens, c.completes) for c in chunks] == [(second, 8, 20, False)]
    assert desk.scheduler.decoding() == [first]


def test_a_chunk_has_as_many_tokens_as_a_round_has_rows_unless_told() -> None:
    assert SchedulerLimits(max_rows_per_forward=64).chunk_tokens == 64
    assert SchedulerLimits(max_rows_per_forward=64, prefill_chunk_tokens=16).chunk_tokens == 16


def test_a_round_reserves_what_is_under_way_the_anchor_and_the_drafts() -> None:
    desk = Desk()
    first, second = desk.decode(20, 30)
    first.ahead = 2
    room = desk.scheduler.reserve_round([first, second], [4, 0])
    assert (room.requests, room.granted, room.preempted) == ([first, second], [4, 0], [])
    assert (first.reserved, second.reserved) == (20 + 2 + 1 + 4, 31)


def test_slots_are_reserved_up_to_the_end_of_the_answer_at_most() -> None:
    desk = Desk()
    (request,) = desk.decode(20, max_tokens=4)
    assert desk.scheduler.reserve_round([request], [7]).granted == [7]
    assert request.reserved == request.limit_tokens == 24


def test_a_lack_of_pages_costs_the_youngest_its_drafts_first() -> None:
    desk = Desk(pages=5)
    old, young = desk.decode(30, 31)
    room = desk.scheduler.reserve_round([old, young], [7, 7])
    assert (room.granted, room.preempted) == ([7, 0], [])
    assert desk.pages.free_pages == 0


def test_drafts_that_fit_into_the_last_page_are_granted() -> None:
    desk = Desk(pages=5)
    old, young = desk.decode(30, 28)
    assert desk.scheduler.reserve_round([old, young], [7, 7]).granted == [7, 3]


def test_room_for_drafts_is_taken_back_before_anyone_has_to_go() -> None:
    desk = Desk(pages=5)
    old, young = desk.decode(31, 31)
    assert desk.scheduler.reserve_round([old, young], [0, 4]).granted == [0, 4]
    desk.emit(old)
    room = desk.scheduler.reserve_round([old, young], [4, 4])
    assert (room.granted, room.preempted) == ([4, 0], [])
    assert (len(old.pages), len(young.pages)) == (3, 2)
    desk.pages.check([old, young])


def test_the_youngest_gives_way_to_an_older_one() -> None:
    desk = Desk(pages=6)
    old, middle, young = desk.decode(31, 30, 15)
    assert desk.scheduler.reserve_round([young], [2]).granted == [2]
    desk.emit(young)
    desk.emit(old)
    room = desk.scheduler.reserve_round([old, middle, young], [0, 0, 0])
    assert (room.requests, room.granted, room.preempted) == ([old, middle], [0, 0], [young])
    assert desk.scheduler.running == [old, middle]
    assert desk.scheduler.preemptions == 1


def test_the_youngest_never_drives_out_an_older_one() -> None:
    desk = Desk(pages=5)
    old, young = desk.decode(30, 31)
    desk.scheduler.reserve_round([old], [3])
    old.ahead = 4
    desk.emit(young)
    room = desk.scheduler.reserve_round([old, young], [0, 0])
    assert (room.requests, room.preempted) == ([old], [young])


@pytest.mark.parametrize(("pages", "gone"), [(4, True), (5, False)])
def test_one_that_prefills_gives_way_but_its_prompt_is_no_spare_room(
    pages: int, gone: bool
) -> None:
    desk = Desk(pages=pages)
    (old,) = desk.decode(31)
    (young,) = desk.submit(20)
    assert desk.scheduler.admit() == [young]
    desk.emit(old)
    room = desk.scheduler.reserve_round([old], [0])
    assert room.preempted == ([young] if gone else [])
    assert len(young.pages) == (0 if gone else 2)


def test_a_preempted_request_is_as_before_its_admission_but_for_its_epoch() -> None:
    desk = Desk()
    old, young = desk.decode(20, 30)
    (later,) = desk.submit(5)
    young.draft, young.ahead = Draft((1,), (0,)), 1
    assert desk.pages.try_reserve(young, 40)
    desk.scheduler.preempt(young)
    assert (young.committed, young.ahead, young.reserved, young.pages) == (0, 0, 0, [])
    assert (young.prefilled, young.seat, young.epoch, len(young.draft)) == (False, NO_SEAT, 1, 0)
    desk.pages.check([old])
    assert desk.scheduler.admit() == [young, later], "it goes to the front of the line"
    (chunk, _) = desk.scheduler.prefill_chunks()
    assert (chunk.request, chunk.tokens, chunk.completes) == (young, 31, True)


def test_preempted_requests_wait_in_order_of_age() -> None:
    desk = Desk()
    first, second, third = desk.decode(10, 11, 12)
    for request in (second, third, first):
        desk.scheduler.preempt(request)
    assert desk.scheduler.admit() == [first, second, third]


def test_what_was_published_before_a_preemption_is_found_again() -> None:
    desk = Desk(cached=True)
    (request,) = desk.decode(40)
    desk.pages.publish(request)
    desk.scheduler.preempt(request)
    assert (desk.pages.used_pages, desk.pages.cached_pages) == (0, 2)
    desk.scheduler.admit()
    assert (request.committed, request.cached_tokens) == (32, 32)


def test_slots_for_drafts_are_given_back_with_the_rest() -> None:
    """Case B12: what rejected drafts had reserved is freed at finish, abort and preemption."""
    desk = Desk()
    requests = desk.decode(30, 31, 15)
    desk.scheduler.reserve_round(requests, [7, 7, 7])
    assert desk.pages.used_pages == 3 + 3 + 2
    desk.scheduler.remove(requests[0])
    desk.scheduler.preempt(requests[1])
    desk.scheduler.remove(requests[2])
    desk.pages.check([])
    assert desk.pages.free_pages == desk.pages.capacity_pages


def test_trimming_never_takes_what_rounds_in_flight_may_commit() -> None:
    desk = Desk()
    (request,) = desk.decode(20)
    request.ahead = 8
    desk.scheduler.reserve_round([request], [20])
    assert len(request.pages) == 4
    desk.pages.trim(request, 0)
    assert (request.reserved, len(request.pages)) == (28, 2)


def test_the_choices_of_one_prompt_prefill_it_once() -> None:
    engine = PaperEngine.of(pool_pages=60)
    prompt = [n % 9 for n in range(42)]
    requests = engine.submit(*(spec_of(prompt, 6) for _ in range(5)))
    engine.run(most_turns=30)
    assert len(engine.finished) == 5
    assert [request.cached_tokens for request in requests] == [0, 40, 40, 40, 40]
    assert engine.prefilled_tokens == 42 + 4 * 2


def test_who_waits_for_a_beginning_holds_up_nobody_else() -> None:
    desk = Desk(pages=40, cached=True, max_rows_per_forward=16)
    text = list(range(64))
    first, sibling = (desk.scheduler.submit(spec_of([*text, n])) for n in range(2))
    (stranger,) = desk.submit(20)
    assert desk.scheduler.admit() == [first, stranger]
    first.committed = 48
    desk.pages.publish(first)
    assert desk.scheduler.admit() == [], "all of the common pages are worth waiting for"
    first.committed = 64
    desk.pages.publish(first)
    assert desk.scheduler.admit() == [sibling]
    assert sibling.cached_tokens == 64
    assert desk.scheduler.running == [first, sibling, stranger], "in order of age"


@pytest.mark.parametrize("leave", ["remove", "preempt"])
def test_who_waits_for_a_beginning_that_never_comes_computes_it(leave: str) -> None:
    desk = Desk(cached=True)
    first, sibling = (desk.scheduler.submit(spec_of(range(64), 8)) for _ in range(2))
    assert desk.scheduler.admit() == [first]
    getattr(desk.scheduler, leave)(first)
    entered = desk.scheduler.admit()
    assert entered == ([sibling] if leave == "remove" else [first])
    desk.scheduler.remove(sibling)


def test_what_a_waiting_sibling_needs_is_not_given_to_younger_ones() -> None:
    desk = Desk(pages=12, cached=True)
    first, sibling = (desk.scheduler.submit(spec_of([*range(64), n])) for n in range(2))
    (stranger,) = desk.submit(40)
    assert desk.scheduler.admit() == [first]
    first.committed = 64
    desk.pages.publish(first)
    assert desk.scheduler.admit() == [sibling, stranger]


def test_tenants_do_not_wait_for_each_other() -> None:
    desk = Desk(pages=40, cached=True)
    requests = [desk.scheduler.submit(spec_of(range(64), salt=salt)) for salt in (b"a", b"b")]
    assert desk.scheduler.admit() == requests
    assert not set(requests[0].pages) & set(requests[1].pages)


def test_slots_lie_in_the_requests_own_pages() -> None:
    desk = Desk()
    (owner,) = desk.submit(40)
    desk.scheduler.admit()
    slots = [desk.pages.slot(owner, position) for position in range(40)]
    assert len(set(slots)) == 40
    assert {slot // PAGE for slot in slots} == set(owner.pages)
    assert NULL_PAGE not in owner.pages
    with pytest.raises(IndexError):
        desk.pages.slot(owner, 40)


def test_all_choices_of_a_request_are_found_by_its_id() -> None:
    desk = Desk()
    keys = [RequestKey("a", "r", 0), RequestKey("a", "r", 1), RequestKey("b", "r", 0)]
    for key in keys:
        desk.scheduler.submit(replace(spec_of([3], 2), key=key))
    assert desk.scheduler.keys_of("a", "r") == keys[:2]
    assert desk.scheduler.keys_of("b") == keys[2:]


def test_deadlines_are_looked_at_whether_one_waits_or_runs() -> None:
    desk = Desk(max_running_requests=1)
    specs = [replace(spec_of([3], 2), deadline_s=at) for at in (5.0, 6.0, None)]
    first, second, _ = (desk.scheduler.submit(spec) for spec in specs)
    desk.scheduler.admit()
    assert desk.scheduler.overdue(5.0) == []
    assert desk.scheduler.overdue(6.5) == [first, second]
