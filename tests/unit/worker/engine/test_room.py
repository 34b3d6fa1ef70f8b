"""Room for a round: what drafts get, and who gives way when pages lack."""

import pytest

from tests.unit.worker.engine.desk import Desk


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
