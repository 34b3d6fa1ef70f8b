"""The loop around the laws: what comes in, what goes out, what a round really does."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from outrider_worker.engine.guard import Guard
from outrider_worker.engine.inbox import DropOwner, EndAll
from outrider_worker.engine.orders import RoundOrder, StepOrder
from outrider_worker.engine.plans import Probe
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import (
    Draft,
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    SpeculationLimits,
)
from outrider_worker.results import StepResult
from outrider_worker.runner import Mask, Runner, Step
from outrider_worker.speculate.drafter import Ask
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.scripted import ScriptedDrafter, always
from tests.support.engines import (
    Bench,
    flat_costs,
    greedy_text,
    prompts,
    request,
    static_plan,
    ticking,
    undisturbed,
)
from tests.support.tiny_models import VOCAB_SIZE

PROMPTS = prompts(4)


def _scripted(right: int, prompts_: list[tuple[int, ...]] = PROMPTS) -> ScriptedDrafter:
    continuations = {prompt: greedy_text(prompt, 64) for prompt in prompts_}
    return ScriptedDrafter(continuations, always(right), VOCAB_SIZE, 8)


def test_a_round_verifies_exactly_min_of_planned_and_existing() -> None:
    """Two rows per request are planned of four drafts: the best two of each are verified."""
    plan = static_plan("scripted", 4, verify=lambda n, d: min(2, d) * n)
    bench = Bench(_scripted(8), plan)
    bench.run(*(request(prompt, 40) for prompt in PROMPTS))
    full = [r for r in bench.records if r.requests == 4 and r.pool_tokens == 16]
    assert full
    assert {r.target_rows for r in full} == {12}
    assert {r.verified_tokens for r in full} == {8}
    assert {o.verified for r in full for o in r.outcomes} == {2}


def _at_most(budget: int) -> Callable[[int, int], int]:
    return lambda n, d: min(budget, n * d)


def test_any_pick_gives_the_same_text() -> None:
    """V between none and all, in every round another: no text changes, greedy or seeded."""
    budgets = itertools.cycle([0, 1, 5, 2, 11, 3, 16, 7])
    specs = [request(p, 60, temperature=t, seed=5) for p in PROMPTS for t in (0.0, 0.9)]
    bench = Bench(_scripted(3))
    stream = bench.plans.open_stream()
    answers = [bench.submit(spec) for spec in specs]
    for version, budget in enumerate(budgets, 1):
        plan = replace(static_plan("scripted", 4, verify=_at_most(budget)), version=version)
        bench.plans.offer(stream, plan, 0.0)
        bench.step()
        if bench.engine.idle:
            break
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    assert len({r.verified_tokens for r in bench.records}) > 5


def test_drafts_of_a_request_that_ended_first_are_drafted_and_not_verified() -> None:
    bench = Bench(_scripted(8), static_plan("scripted", 4))
    spec = request(PROMPTS[0], 60)
    answer = bench.submit(spec)
    bench.step()
    bench.cancel(spec.key)
    bench.run()
    assert answer.totals is not None
    assert (answer.totals.drafted_tokens, answer.totals.verified_tokens) == (4, 0)
    outcomes = [outcome for record in bench.records for outcome in record.outcomes]
    assert sum(len(outcome.bins) for outcome in outcomes) == 4


def test_a_drafter_that_breaks_its_promises_harms_nobody() -> None:
    """B22: longer than asked, ids the target does not know: cut, never verified."""

    class Unruly(ScriptedDrafter):
        def propose(self, asks: Sequence[Ask]) -> list[Draft]:
            return [Draft((5, 6, VOCAB_SIZE + 7, 8) * 9, (0,) * 36, ask.tokens) for ask in asks]

    drafter = Unruly({}, always(0), VOCAB_SIZE, 8)
    bench = Bench(drafter, static_plan("scripted", 6))
    (answer,) = bench.run(request(PROMPTS[0], 30))
    assert answer.token_ids == greedy_text(PROMPTS[0], 30)
    assert max(record.pool_tokens for record in bench.records) == 2


def test_plans_may_change_at_every_step() -> None:
    bench = Bench(NgramDrafter(8))
    stream = bench.plans.open_stream()
    answers = [bench.submit(request(prompt, 50)) for prompt in PROMPTS]
    for version in range(1, 400):
        bench.plans.offer(stream, static_plan("ngram", version % 8, version=version), 0.0)
        bench.step()
        if bench.engine.idle:
            break
    assert [a.token_ids for a in answers] == [greedy_text(prompt, 50) for prompt in PROMPTS]
    versions = [r.plan_version for r in bench.records]
    assert versions == sorted(versions)
    assert len({r.carried_draft_tokens for r in bench.records}) > 4


def test_a_class_may_be_capped_and_a_share_of_rounds_kept_plain() -> None:
    plan = replace(
        static_plan("scripted", 6),
        class_caps={"sampled": 2},
        probe=Probe(plain_share=0.25),
    )
    bench = Bench(_scripted(8), plan)
    bench.run(request(PROMPTS[0], 60), request(PROMPTS[1], 60, temperature=0.1, seed=1))
    asked: dict[str, set[int]] = {"greedy": set(), "sampled": set()}
    for record in bench.records:
        for outcome in record.outcomes:
            asked[outcome.request_class].add(outcome.asked_tokens)
    assert max(asked["greedy"]) == 6
    assert max(asked["sampled"]) == 2
    drafting = [r.next_draft_tokens > 0 for r in bench.records if r.requests]
    assert 0.6 < sum(drafting) / len(drafting) < 0.85


def test_without_a_plan_nothing_is_drafted() -> None:
    bench = Bench(_scripted(8), plan=None)
    (answer,) = bench.run(request(PROMPTS[0], 20))
    assert answer.totals is not None
    assert answer.totals.drafted_tokens == 0
    assert {r.plan_version for r in bench.records} == {0}


def test_rounds_in_which_nobody_may_draft_are_plain_ones() -> None:
    """To the guard and the planner too; nor is the drafter fed for them."""
    drafter = _scripted(3)
    bench = Bench(drafter, static_plan("scripted", 3))
    off = SpeculationLimits(enabled=False)
    bench.run(request(PROMPTS[0], 20, speculation=off))
    assert {record.next_draft_tokens for record in bench.records} == {0}
    assert {record.carried_draft_tokens for record in bench.records} == {0}
    assert {record.times.feed_s for record in bench.records} == {0.0}


def test_the_forward_never_exceeds_its_rows() -> None:
    """B05: prefill chunks and verify rounds both stay within the budget under load."""
    limits = SchedulerLimits(12, max_context_tokens=512, max_rows_per_forward=24)
    plan = static_plan("scripted", 7)
    seen: list[int] = []

    class Watched(Runner):
        def __init__(self, inner: Runner) -> None:
            self.__dict__.update(inner.__dict__)

        def begin(self, order: RoundOrder | None) -> Step:
            seen.append(order.rows if order else 0)
            return super().begin(order)

        def finish(
            self,
            step: Step,
            order: StepOrder,
            masks: Sequence[Mask | None] = (),
            first_masks: Sequence[Mask | None] = (),
        ) -> None:
            seen.append(sum(chunk.tokens for chunk in order.chunks))
            super().finish(step, order, masks, first_masks)

    bench = Bench(_scripted(5), plan, limits=limits, wrap_runner=Watched)
    many = [PROMPTS[number % 4] for number in range(14)]
    answers = bench.run(*(request(prompt, 30) for prompt in many))
    assert max(seen) == 24
    assert [a.token_ids for a in answers] == [greedy_text(prompt, 30) for prompt in many]


@pytest.mark.parametrize("length", [1, 15, 16, 63, 64, 65, 127, 128, 129])
def test_drafts_across_page_borders(length: int) -> None:
    """B04: prompts that end anywhere around a page's edge, K = 8."""
    prompt = tuple(3 + (7 * place) % 250 for place in range(length))
    bench = Bench(_scripted(8, [prompt]), static_plan("scripted", 8))
    (answer,) = bench.run(request(prompt, 64))
    assert answer.token_ids == greedy_text(prompt, 64)


def test_a_tiny_pool_serves_everyone_in_turn() -> None:
    """B16, B17: room for one request at a time; all finish, nobody is aborted."""
    bench = Bench(NgramDrafter(8), static_plan("ngram", 8), pool_pages=3)
    answers = bench.run(*(request(prompt, 80) for prompt in PROMPTS))
    assert [a.token_ids for a in answers] == [greedy_text(prompt, 80) for prompt in PROMPTS]


def test_cancelled_requests_end_once_and_say_so() -> None:
    bench = Bench(NgramDrafter(8), static_plan("ngram", 4))
    spec, other = request(PROMPTS[0], 60), request(PROMPTS[1], 30)
    answer, kept = bench.submit(spec), bench.submit(other)
    for _ in range(4):
        bench.step()
    bench.cancel(spec.key)
    bench.cancel(spec.key)
    bench.run()
    assert answer.end == Finish(FinishReason.CANCELLED)
    assert answer.token_ids == greedy_text(PROMPTS[0], 60)[: len(answer.token_ids)]
    assert kept.token_ids == greedy_text(PROMPTS[1], 30)


def test_a_lost_router_takes_its_requests_with_it() -> None:
    bench = Bench()
    answer = bench.submit(request(PROMPTS[0], 60))
    bench.step()
    bench.engine.inbox.put(DropOwner("test"))
    bench.run()
    assert answer.ends == []


def test_deadlines_end_requests_wherever_they_are() -> None:
    bench = Bench(pool_pages=3)
    late = bench.submit(request(PROMPTS[0], 80, deadline_s=0.01))
    waiting = bench.submit(request(PROMPTS[1], 80, deadline_s=0.01))
    free = bench.submit(request(PROMPTS[2], 20))
    bench.run()
    for answer in (late, waiting):
        assert isinstance(answer.end, Failure)
        assert answer.end.code is FailureCode.DEADLINE
    assert free.token_ids == greedy_text(PROMPTS[2], 20)


def test_ending_all_tells_how_it_was() -> None:
    bench = Bench()
    answers = [bench.submit(request(prompt, 60)) for prompt in PROMPTS]
    bench.step()
    bench.engine.inbox.put(EndAll("shutting down"))
    bench.run()
    assert {a.end for a in answers} == {Failure(FailureCode.UNAVAILABLE, "shutting down")}


def test_refusals_reach_the_caller_and_disturb_nobody() -> None:
    bench = Bench()
    refused, served = bench.run(request([5] * 1000, 100), request(PROMPTS[0], 10))
    assert isinstance(refused.end, Failure)
    assert refused.end.code is FailureCode.TOO_LONG
    assert refused.end.param == "prompt_ids"
    assert served.token_ids == greedy_text(PROMPTS[0], 10)


def test_the_guard_bounds_a_planner_that_drafts_hopelessly() -> None:
    """Always d = K, never right, each verify round as dear as its rows: the guard acts."""
    costs = flat_costs(seconds=1e-3)

    class Priced(Runner):
        """Reports a target time of 1 ms per row: five rows cost five plain rounds."""

        def __init__(self, inner: Runner) -> None:
            self.__dict__.update(inner.__dict__)

        def begin(self, order: RoundOrder | None) -> Step:
            step = super().begin(order)
            return PricedStep(**vars(step), rows=order.rows if order else 0)

    @dataclass
    class PricedStep(Step):
        rows: int = 0

        def read(self) -> StepResult:
            result = super().read()
            return replace(result, times=replace(result.times, target_s=1e-3 * self.rows))

    guard = Guard()
    bench = Bench(
        _scripted(0),
        static_plan("scripted", 4),
        costs=costs,
        guard=guard,
        now_s=ticking(2e-4),
        wrap_runner=Priced,
    )
    (answer,) = bench.run(request(PROMPTS[0], 64))
    state = guard.snapshot()
    assert state.trips == 1
    assert answer.token_ids == greedy_text(PROMPTS[0], 64)
    assert answer.totals is not None
    # θ starts at 62 tokens, a hopeless round loses about 4: some 20 rounds, then none.
    assert answer.totals.verify_steps < 30
    assert bench.records[-1].verified_tokens == 0


def test_records_say_where_the_time_went() -> None:
    bench = Bench(_scripted(4), static_plan("scripted", 4))
    bench.run(request(PROMPTS[0], 20))
    rounds = [r for r in bench.records if r.requests]
    assert all(r.times.target_s > 0 for r in rounds)
    assert all(r.times.draft_s > 0 for r in rounds if r.next_draft_tokens)
    assert [r.round for r in bench.records] == list(range(1, len(bench.records) + 1))
    assert bench.records[0].prefill_tokens == len(PROMPTS[0])
    assert bench.records[0].requests == 0


def test_no_drafts_beyond_the_last_token() -> None:
    """A request that may emit m more tokens is asked for at most m − 1 drafts."""
    bench = Bench(_scripted(8), static_plan("scripted", 8))
    (answer,) = bench.run(request(PROMPTS[0], 5, speculation=SpeculationLimits(max_draft_tokens=8)))
    assert answer.totals is not None
    assert answer.totals.drafted_tokens == 3  # one from the prefill, four left to emit
    assert answer.token_ids == greedy_text(PROMPTS[0], 5)
