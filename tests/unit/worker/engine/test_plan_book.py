"""Which plan is in force: streams, versions, validity, grace (Z01), and what it means (Z02)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.budget import NO_DRAFTS, Budgeter, DraftDecision, DraftKind, Share
from outrider_worker.engine.guard import Permission
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.plans import OFF, DrafterBudget, Plan, Probe

FREE = Permission.SPECULATE


def _plan(version: int, draft: int = 4, probe: Probe | None = None) -> Plan:
    table = tuple(tuple(n * (1 + d) for d in range(draft + 1)) for n in (1, 2, 4))
    budgets = {"x": DrafterBudget((draft,) * 3, table)}
    return Plan(version, (1, 2, 4), budgets, probe=probe or Probe())


def test_versions_grow_within_a_stream() -> None:
    """Z01: 5, 3, 4, 6 → 5 and 6 are applied."""
    book = PlanBook()
    stream = book.open_stream()
    applied = [v for v in (5, 3, 4, 6) if book.offer(stream, _plan(v), 0.0)]
    assert applied == [5, 6]
    assert book.refused_plans == 2


def test_an_earlier_streams_plans_count_no_more() -> None:
    """A planner that came back with its clock set back starts again at a low version."""
    book = PlanBook()
    old = book.open_stream()
    assert book.offer(old, _plan(900), 0.0)
    new = book.open_stream()
    assert not book.offer(old, _plan(901), 1.0)
    assert book.offer(new, _plan(1), 1.0)
    assert book.in_force(1.0).version == 1


def test_validity_then_grace_then_off() -> None:
    book = PlanBook()
    stream = book.open_stream()
    book.offer(stream, _plan(1), 100.0)
    assert book.in_force(109.9).version == 1
    assert book.in_force(110.1) is OFF
    book.renew(stream, 108.0)
    assert book.in_force(117.9).version == 1
    assert book.age_s(117.0) == pytest.approx(9.0)


def test_a_new_stream_does_not_renew_the_old_plan() -> None:
    book = PlanBook()
    old = book.open_stream()
    book.offer(old, _plan(1), 0.0)
    new = book.open_stream()
    book.renew(old, 8.0)
    book.renew(new, 8.0)
    assert book.in_force(10.5) is OFF


def test_no_plan_is_off() -> None:
    assert PlanBook().in_force(0.0) is OFF
    assert OFF.draft_tokens("x", 3) == 0
    assert OFF.target_rows("x", 3, 4) == 3


@pytest.mark.parametrize(("requests", "carried", "rows"), [(1, 4, 5), (3, 4, 15), (9, 4, 45)])
def test_between_two_steps_the_larger_one_is_used_in_proportion(
    requests: int, carried: int, rows: int
) -> None:
    assert _plan(1).target_rows("x", requests, carried) == rows


@given(
    planned_draft=st.integers(0, 2**32 - 1),
    planned_rows=st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3),
    requests=st.integers(1, 40),
    carried=st.integers(0, 8),
    pool=st.integers(0, 400),
)
def test_senseless_budgets_are_clamped_never_obeyed(
    planned_draft: int, planned_rows: list[int], requests: int, carried: int, pool: int
) -> None:
    """Z02: whatever the message says, drafts stay within 0…K and rows within the forward."""
    table = tuple((rows,) * 3 for rows in planned_rows)
    plan = Plan(1, (1, 2, 4), {"x": DrafterBudget((planned_draft,) * 3, table)})
    budgeter = Budgeter("x", max_draft_tokens=8, max_rows=64)
    draft = budgeter.next_draft(plan, requests, FREE)
    assert 0 <= draft.tokens <= 8
    assert draft.clamped == (planned_draft > 8)
    pool = min(pool, requests * carried)
    verify = budgeter.verify(plan, requests, DraftDecision(carried, DraftKind.PLANNED), pool)
    assert 0 <= verify.tokens <= min(pool, 64 - requests)


@given(pool=st.integers(0, 40), planned=st.integers(0, 40))
def test_exactly_min_of_planned_and_existing(pool: int, planned: int) -> None:
    plan = Plan(1, (10,), {"x": DrafterBudget((4,), ((10, 10, 10, 10, 10 + planned),))})
    budgeter = Budgeter("x", 8, 128)
    decision = budgeter.verify(plan, 10, DraftDecision(4, DraftKind.PLANNED), pool)
    assert decision.tokens == min(planned, pool)
    assert not decision.clamped


def test_another_drafters_plan_is_no_plan() -> None:
    assert Budgeter("y", 8, 64).next_draft(_plan(1), 1, FREE) == NO_DRAFTS


def test_off_is_probed_at_the_given_share_and_probes_are_verified() -> None:
    plan = _plan(1, draft=0, probe=Probe(cohort_share=1 / 32, draft_tokens=2))
    budgeter = Budgeter("x", 8, 64)
    decisions = [budgeter.next_draft(plan, 1, FREE) for _ in range(320)]
    probes = [d for d in decisions if d.kind is DraftKind.PROBE]
    assert len(probes) == 10
    assert probes[0].tokens == 2
    assert budgeter.verify(plan, 1, probes[0], pool_tokens=2).tokens == 2


def test_the_guard_stops_drafting_and_marks_trials() -> None:
    budgeter = Budgeter("x", 8, 64)
    assert budgeter.next_draft(_plan(1), 1, Permission.PLAIN) == NO_DRAFTS
    assert budgeter.next_draft(_plan(1), 1, Permission.TRIAL).kind is DraftKind.TRIAL


@given(share=st.floats(0, 1), calls=st.integers(0, 300))
def test_a_share_is_kept_to_within_one_call(share: float, calls: int) -> None:
    taker = Share()
    taken = sum(taker.take(share) for _ in range(calls))
    assert abs(taken - share * calls) <= 1 + 1e-6


def test_a_share_that_is_no_number_is_none_at_all() -> None:
    taker = Share()
    assert not any(taker.take(float("nan")) for _ in range(10))
    assert not any(taker.take(0.0) for _ in range(10))
    assert taker.take(1.0)
