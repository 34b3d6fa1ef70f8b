"""Who waits, enters, is prefilled and gives way, one situation at a time."""

from dataclasses import replace
from typing import Any

import pytest

from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import (
    NO_SEAT,
    NULL_PAGE,
    Draft,
    FailureCode,
    RequestKey,
    RequestRefused,
)
from tests.support.paper_engine import PaperEngine, spec_of
from tests.unit.worker.engine.desk import PAGE, Desk


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
    desk.scheduler.remove(third)
    desk.scheduler.remove(first)
    assert first.seat == NO_SEAT
    desk.scheduler.admit()
    assert (second.seat, fourth.seat) == (1, 0)


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
    assert not desk.scheduler._admission._awaited, "nobody is remembered who has left"


def test_a_beginning_that_is_computed_but_not_published_is_not_waited_for() -> None:
    desk = Desk(cached=True)
    first, sibling = (desk.scheduler.submit(spec_of(range(64), 8)) for _ in range(2))
    assert desk.scheduler.admit() == [first]
    first.committed = 64
    assert desk.scheduler.admit() == [sibling]


class Unread(list[int]):
    """Tokens that nobody may look at."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("read")


def test_a_beginning_that_is_computed_is_not_compared_again() -> None:
    """Whoever waits in a full pool asks in every round: a long prompt would cost milliseconds."""
    desk = Desk(cached=True)
    first, sibling = (desk.scheduler.submit(spec_of(range(64), 8)) for _ in range(2))
    assert desk.scheduler.admit() == [first]
    first.committed = 64
    desk.pages.publish(first)
    first.token_ids = Unread(first.token_ids)
    assert desk.scheduler.admit() == [sibling]
    assert sibling.cached_tokens == 64 - PAGE, "the last token is fed"


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
