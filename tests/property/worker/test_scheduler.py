"""The scheduler under random loads: its budgets hold, everyone is served, in any pool."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Request
from tests.support.paper_engine import PaperEngine, spec_of

PAGE = 4


def _limits(running: int = 8, rows: int = 16) -> SchedulerLimits:
    return SchedulerLimits(running, max_context_tokens=400, max_rows_per_forward=rows)


def _accept_some(request: Request, granted: int) -> int:
    """Now all, now none, now a part of the drafts."""
    return min(granted, len(request.token_ids) % 3 * 2)


workloads = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 20), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(
    workload=workloads,
    spare_pages=st.integers(0, 20),
    draft_tokens=st.integers(0, 7),
    running_ahead=st.booleans(),
    cached=st.booleans(),
)
def test_everyone_is_served_and_nothing_is_left(
    workload: list[tuple[int, int, bool]],
    spare_pages: int,
    draft_tokens: int,
    running_ahead: bool,
    cached: bool,
) -> None:
    """Cases B16 and B17: any load in any pool that holds its largest request."""
    largest = max(prompt + answer for prompt, answer, _ in workload)
    engine = PaperEngine.of(
        -(-largest // PAGE) + spare_pages,
        PAGE,
        limits=_limits(),
        cached=cached,
        draft_tokens=draft_tokens,
        accept=_accept_some,
        running_ahead=running_ahead,
    )
    for prompt, answer, alike in workload:
        engine.submit(spec_of([9 if alike else prompt % 5] * prompt, answer))
    engine.run(most_turns=8 * 60)
    assert len(engine.finished) == len(workload)
    assert all(request.room_tokens == 0 for request in engine.finished)
    assert engine.pages.used_pages == 0
    assert cached or engine.pages.free_pages == engine.pages.capacity_pages


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("draft_tokens", [0, 7])
def test_eight_long_requests_in_a_pool_for_hardly_one(draft_tokens: int, cached: bool) -> None:
    """They take turns by age: hardly more turns than one after the other, few preemptions."""
    engine = PaperEngine.of(
        31,
        PAGE,
        limits=_limits(),
        cached=cached,
        draft_tokens=draft_tokens,
        accept=lambda _r, _g: 0,
    )
    requests = engine.submit(*(spec_of([10 + n] * 20, 100) for n in range(8)))
    finished_at = engine.run(most_turns=8 * 110)
    assert engine.finished == requests, "in order of age"
    assert finished_at > 100
    assert engine.scheduler.preemptions <= 3 * 8


def test_the_oldest_never_gives_way() -> None:
    engine = PaperEngine.of(20, PAGE, limits=_limits(), draft_tokens=5, accept=_accept_some)
    requests = engine.submit(*(spec_of([10 + n] * (5 + n), 60) for n in range(6)))
    while not engine.scheduler.idle:
        oldest = next(request for request in requests if request not in engine.finished)
        epoch, tokens = oldest.epoch, len(oldest.token_ids)
        for _ in range(3):
            engine.turn()
        assert oldest in engine.finished or (oldest.epoch, len(oldest.token_ids) > tokens) == (
            epoch,
            oldest.prefilled,
        )
    assert engine.scheduler.preemptions > 0


@given(
    rows=st.integers(1, 20),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_a_chunk_never_exceeds_its_budget_and_goes_by_age(rows: int, sizes: list[int]) -> None:
    engine = PaperEngine.of(100, PAGE, limits=_limits(rows=rows), cached=False)
    requests = engine.submit(*(spec_of([n] * size, 1) for n, size in enumerate(sizes)))
    engine.scheduler.admit()
    for _ in range(-(-sum(sizes) // rows)):
        chunks = engine.scheduler.prefill_chunks()
        left = sum(len(r.token_ids) - r.committed for r in requests)
        assert sum(chunk.tokens for chunk in chunks) == min(rows, left)
        assert all(chunk.completes for chunk in chunks[:-1])
        unfinished = [r for r in requests if not r.prefilled]
        assert [chunk.request for chunk in chunks] == unfinished[: len(chunks)]
        for chunk in chunks:
            chunk.request.committed += chunk.tokens
            chunk.request.prefilled = chunk.completes
    assert engine.scheduler.prefill_chunks() == []
    assert engine.scheduler.decoding() == requests


def test_a_steady_stream_of_short_requests_does_not_starve_a_long_one() -> None:
    engine = PaperEngine.of(14, PAGE, limits=_limits(running=4), draft_tokens=3)
    (long,) = engine.submit(spec_of([99] * 40, 10))
    for turn in range(60):
        engine.submit(spec_of([turn] * 5, 3))
        engine.turn()
        if long in engine.finished:
            break
    assert long in engine.finished
    engine.run(most_turns=400)


def test_siblings_that_wait_are_served_although_others_keep_coming() -> None:
    """Who waits for another's beginning is the oldest in line once it is there."""
    engine = PaperEngine.of(20, PAGE, limits=_limits(running=3, rows=4))
    family = engine.submit(*(spec_of([5] * 33, 4) for _ in range(3)))
    for turn in range(80):
        engine.submit(spec_of([100 + turn] * 6, 2))
        engine.turn()
    assert set(family) <= set(engine.finished)
    assert [request.cached_tokens for request in family] == [0, 32, 32]
