"""Admission, prefill budgets and page accounting under random traffic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.engine.types import NULL_PAGE, FailureCode, RequestKey, RequestRefused
from tests.support.engines import request

PAGE = 16


def _scheduler(pages: int = 11, running: int = 4, rows: int = 32, waiting: int = 100) -> Scheduler:
    limits = SchedulerLimits(running, 128, rows, waiting)
    return Scheduler(limits, PageAccount(pages, PAGE))


def _refused(scheduler: Scheduler, *, prompt: int, max_tokens: int) -> FailureCode:
    with pytest.raises(RequestRefused) as refused:
        scheduler.submit(request([3] * prompt, max_tokens))
    return refused.value.failure.code


def test_what_can_never_fit_is_refused_at_once() -> None:
    scheduler = _scheduler(pages=5)
    assert _refused(scheduler, prompt=100, max_tokens=29) is FailureCode.TOO_LONG
    assert _refused(scheduler, prompt=60, max_tokens=10) is FailureCode.TOO_LONG
    scheduler.submit(request([3] * 60, 4))
    assert scheduler.waiting_requests == 1


def test_a_full_line_is_overload_and_a_used_id_is_the_requests_fault() -> None:
    scheduler = _scheduler(waiting=1)
    spec = request([3, 4], 4)
    scheduler.submit(spec)
    assert _refused(scheduler, prompt=3, max_tokens=3) is FailureCode.OVERLOADED
    with pytest.raises(RequestRefused, match="in use"):
        scheduler.submit(spec)


def test_first_come_first_served_within_the_promises() -> None:
    """A request waits until all it can need is free; later, smaller ones do not overtake it."""
    scheduler = _scheduler(pages=6)
    big, bigger, small = (scheduler.submit(request([3] * size, 8)) for size in (40, 56, 2))
    scheduler.admit()
    assert scheduler.running == [big]
    scheduler.remove(big)
    scheduler.admit()
    assert scheduler.running == [bigger, small]


def test_prefill_stays_within_the_row_budget_oldest_first() -> None:
    scheduler = _scheduler(rows=20)
    first, second, third = (scheduler.submit(request([3] * size, 4)) for size in (12, 30, 5))
    scheduler.admit()
    chunks = scheduler.prefill_chunks()
    assert [(c.request, c.tokens, c.completes) for c in chunks] == [
        (first, 12, True),
        (second, 8, False),
    ]
    second.committed = 8
    first.token_ids.append(9)  # its first token: it decodes now
    assert [(c.request, c.tokens) for c in scheduler.prefill_chunks()] == [(second, 20)]
    assert scheduler.decoding() == [first]
    assert third.emitted == 0


@given(data=st.data())
def test_pages_have_one_owner_whatever_happens(data: st.DataObject) -> None:
    """Random submits, growth and removals: no page lost, none owned twice, no promise broken."""
    scheduler = _scheduler(pages=data.draw(st.integers(3, 20)), running=3)
    pages = scheduler._pages
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["submit", "grow", "remove"]))
        if action == "submit":
            size, extra = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 40))
            if pages.fits_ever(size + extra):
                scheduler.submit(request([3] * size, extra))
        elif scheduler.everyone():
            chosen = data.draw(st.sampled_from(scheduler.everyone()))
            if action == "remove":
                scheduler.remove(chosen)
            elif chosen in scheduler.running:
                pages.reserve(chosen, data.draw(st.integers(0, 200)))
                chosen.committed = data.draw(st.integers(0, chosen.reserved))
        scheduler.admit()
        pages.check(scheduler.running)
        assert len(scheduler.running) <= 3
    for left in scheduler.everyone():
        scheduler.remove(left)
    pages.check([])
    assert pages.used_pages == pages.promised_pages == 0


def test_slots_lie_in_the_requests_own_pages() -> None:
    scheduler = _scheduler()
    owner = scheduler.submit(request([3] * 40, 8))
    scheduler.admit()
    pages = scheduler._pages
    pages.reserve(owner, 40)
    slots = [pages.slot(owner, position) for position in range(40)]
    assert len(set(slots)) == 40
    assert {slot // PAGE for slot in slots} == set(owner.pages)
    assert NULL_PAGE not in owner.pages
    with pytest.raises(IndexError):
        pages.slot(owner, 40)


def test_all_choices_of_a_request_are_found_by_its_id() -> None:
    scheduler = _scheduler()
    keys = [RequestKey("a", "r", 0), RequestKey("a", "r", 1), RequestKey("b", "r", 0)]
    for key in keys:
        spec = request([3], 2)
        scheduler.submit(type(spec)(key, spec.prompt_ids, spec.sampling))
    assert scheduler.keys_of("a", "r") == keys[:2]
    assert scheduler.keys_of("b") == keys[2:]
