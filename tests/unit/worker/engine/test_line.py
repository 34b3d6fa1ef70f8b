"""In which order who waits is let in."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.line import MAX_OVERTAKEN, WaitingLine
from outrider_worker.engine.types import Request
from tests.support.paper_engine import spec_of
from tests.unit.worker.engine.desk import Desk


def request_of(priority: int) -> Request:
    return Request.from_spec(replace(spec_of([5, 6, 7], 4), priority=priority))


class Line:
    """A waiting line whose requests are known by when they came."""

    def __init__(self) -> None:
        self.ages: dict[Request, int] = {}
        self.line = WaitingLine(self.ages.__getitem__)

    def came(self, *priorities: int) -> list[Request]:
        return [self.join(request_of(priority)) for priority in priorities]

    def join(self, request: Request) -> Request:
        self.ages[request] = len(self.ages)
        self.line.join(request)
        return request

    def order(self) -> list[int]:
        return [self.ages[request] for request in self.line]


def test_lower_priorities_go_first_and_equals_in_the_order_they_came() -> None:
    line = Line()
    line.came(0, 5, 0, -3, 5, -3, 0)
    assert line.order() == [3, 5, 0, 2, 6, 1, 4]


@given(st.lists(st.integers(-2, 2), max_size=40))
def test_a_short_line_is_sorted_by_priority_and_age(priorities: list[int]) -> None:
    line = Line()
    requests = line.came(*priorities)
    in_order = sorted(requests, key=lambda each: (each.spec.priority, line.ages[each]))
    assert list(line.line) == in_order
    assert len(line.line) == len(priorities)


def test_nobody_is_overtaken_for_ever() -> None:
    """Urgent requests keep coming and are let in one by one; the patient one has its turn."""
    line = Line()
    (patient,) = line.came(1)
    let_in = []
    while patient not in let_in:
        line.came(0)
        let_in.append(next(iter(line.line)))
        line.line.leave(let_in[-1:])
    assert len(let_in) == MAX_OVERTAKEN + 1


def test_who_was_sent_back_goes_before_all_others() -> None:
    line = Line()
    first, second, *_ = line.came(3, 2, -9, 0)
    for request in (second, first):
        line.line.leave((request,))
        line.line.send_back(request)
    assert line.order() == [0, 1, 2, 3]


def test_the_scheduler_seats_by_priority() -> None:
    desk = Desk(max_running_requests=1)
    late, soon = (
        desk.scheduler.submit(replace(spec_of([9 + p] * 4, 4), priority=p)) for p in (2, 1)
    )
    assert desk.scheduler.admit() == [soon]
    desk.scheduler.remove(soon)
    assert desk.scheduler.admit() == [late]
