"""Drafters with a state in the engine: cases B06, B10, B13, B14, B15, B19, B21, both grades of off.

The draft model is the target itself, so that a state that is right accepts everything, and one that
is not shows at once.
"""

from pathlib import Path

import pytest

from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plans import Plan, Probe
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import SpeculationLimits
from outrider_worker.model.loader import load_model
from outrider_worker.speculate.device import StatefulDrafter
from outrider_worker.speculate.draft_model import DraftModel
from outrider_worker.streams import EmulatedStream
from tests.support.engines import Answer, Bench, greedy_text, prompts, request, static_plan
from tests.support.laws import itself
from tests.support.neural_drafters import eagle3_head
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model
from tests.support.virtual_stream import HostClock

_NAME = "draft"
_LIMITS = SchedulerLimits(16, max_context_tokens=640, prefill_chunk_tokens=48)


def _bench(draft_tokens: int = 4, **settings: object) -> Bench:
    plan = static_plan(_NAME, draft_tokens) if draft_tokens else None
    merged = {"limits": _LIMITS, "drafters": Drafters(devices=[itself()]), **settings}
    return Bench(plan=plan, **merged)  # type: ignore[arg-type]


class _Planner:
    """Changes the plan as it likes."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stream = bench.plans.open_stream()
        self._version = 0

    def draft(self, tokens: int, probe: Probe | None = None) -> None:
        self._version += 1
        plan = static_plan(_NAME, tokens, version=self._version)
        if probe:
            plan = Plan(self._version, (), {}, probe=probe, validity_s=1e9)
        assert self._bench.plans.offer(self._stream, plan, 0.0)


def _steps(bench: Bench, count: int) -> list[RoundRecord]:
    seen = len(bench.records)
    for _ in range(count):
        bench.step()
    return bench.records[seen:]


def _accepts_everything(answer: Answer) -> bool:
    totals = answer.totals
    assert totals is not None
    # The last round's drafts may lie behind the end.
    return totals.accepted_tokens > 0 and totals.verified_tokens - totals.accepted_tokens <= 8


def test_the_target_itself_is_accepted_for_500_tokens() -> None:
    """B13: no hole after a round whose drafts were all accepted."""
    (answer,) = _bench().run(request(prompts(1)[0], 500))
    assert answer.totals is not None
    assert answer.totals.accepted_tokens == answer.totals.verified_tokens >= 390
    assert answer.token_ids == greedy_text(prompts(1)[0], 500)


@pytest.mark.parametrize("ahead", [False, True])
def test_many_in_chunks_with_penalties_and_noise(ahead: bool) -> None:
    """B19, B21: drafts are coupled to the noise of their places, whoever else drafts."""
    specs = [
        request(prompt * 9, 40, temperature=0.9, seed=number, presence_penalty=0.5 * number)
        for number, prompt in enumerate(prompts(6))
    ]
    stream = EmulatedStream() if ahead else None
    bench = _bench(stream=stream)
    answers = bench.run(*specs)
    bench.stream.close()
    alone = [Bench().run(spec)[0].token_ids for spec in specs]
    assert [answer.token_ids for answer in answers] == alone
    assert all(_accepts_everything(answer) for answer in answers)


def test_after_a_pause_drafts_are_as_good_as_before() -> None:
    """B14: 4 → 0 for 40 rounds → 4, fed once meanwhile, and that is booked."""
    bench = _bench(0)
    planner, answer = _Planner(bench), bench.submit(request(prompts(1)[0], 250))
    planner.draft(4)
    _steps(bench, 10)
    planner.draft(0)
    paused = _steps(bench, 41)[1:]
    assert sum(record.times.feed_s > 0 for record in paused) == 1
    assert all(record.times.draft_s == 0 for record in paused)
    planner.draft(4)
    bench.run()
    assert _accepts_everything(answer)
    assert bench.records[-2].carried_draft_tokens == 4


def test_after_a_long_pause_a_request_goes_on_plainly_and_others_draft() -> None:
    bench = _bench(0)
    planner, answer = _Planner(bench), bench.submit(request(prompts(1)[0], 150))
    planner.draft(4)
    _steps(bench, 5)
    planner.draft(0)
    _steps(bench, 70)
    planner.draft(4)
    after = _steps(bench, 20)
    assert all(r.pool_tokens == 0 and r.times.feed_s == r.times.draft_s == 0 for r in after)
    other = bench.submit(request(prompts(2)[1], 30))
    bench.run()
    assert _accepts_everything(other)
    assert answer.token_ids == greedy_text(prompts(1)[0], 150)


def test_the_guard_drops_and_a_new_request_proves_the_drafts_worth() -> None:
    clock, guard = HostClock(), Guard()
    bench = _bench(guard=guard, now_s=clock)
    specs = [request(prompt, 300) for prompt in prompts(2)]
    for spec in specs:
        bench.submit(spec)
    _steps(bench, 6)
    guard._trip(clock.now_s)
    late = bench.submit(request(prompts(3)[2], 20))
    waiting = _steps(bench, 12)[2:]
    assert all(r.pool_tokens == 0 and r.times.draft_s == 0 for r in waiting)
    clock.now_s += 10
    _steps(bench, 40)
    tried = bench.submit(request(prompts(4)[3], 40))
    bench.run()
    assert late.totals is not None
    assert late.totals.drafted_tokens == 0
    assert _accepts_everything(tried)


def test_while_off_the_plan_is_proved_by_a_few_whole_requests() -> None:
    bench = _bench(0)
    planner = _Planner(bench)
    planner.draft(0, Probe(cohort_share=1 / 32, draft_tokens=2))
    plain = bench.run(request(prompts(1)[0], 40))
    tried, other = bench.run(*[request(prompt, 30) for prompt in prompts(3)[1:]])
    assert plain[0].totals is not None
    assert other.totals is not None
    assert plain[0].totals.drafted_tokens == other.totals.drafted_tokens == 0
    assert _accepts_everything(tried)


def test_a_cached_beginning_costs_no_acceptance() -> None:
    """B10: the same prompt again, once its pages are there and once they are for the target only.

    What the drafter lacks is computed again.
    """
    prompt = prompts(1, 200)[0]
    bench = _bench(0)
    planner = _Planner(bench)
    planner.draft(0)
    bench.run(request(prompt, 20))
    planner.draft(4)
    first, second = bench.run(request(prompt, 60))[0], bench.run(request(prompt, 60))[0]
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 192)
    assert bench.pages.cache.counts.cut_tokens == 192
    assert first.totals == second.totals
    assert _accepts_everything(second)


def test_who_draws_no_drafts_has_all_of_the_cache() -> None:
    prompt = prompts(1, 200)[0]
    bench = _bench(0)
    planner = _Planner(bench)
    planner.draft(0)
    bench.run(request(prompt, 20))
    planner.draft(4)
    (answer,) = bench.run(request(prompt, 20, speculation=SpeculationLimits(enabled=False)))
    assert answer.cached_prompt_tokens == 192


def test_preempted_and_resumed_it_drafts_as_well() -> None:
    specs = [request(prompt, 60) for prompt in prompts(5, 40)]
    bench = _bench(pool_pages=9)
    answers = bench.run(*specs)
    assert bench.scheduler.preemptions > 0
    assert [answer.token_ids for answer in answers] == [
        greedy_text(spec.prompt_ids, 60) for spec in specs
    ]
    for answer in answers:
        assert answer.totals is not None
        assert answer.totals.accepted_tokens > 0.9 * answer.totals.verified_tokens


@pytest.mark.parametrize("prompt_tokens", [50, 63, 64, 70])
def test_beyond_the_drafters_context_nothing_is_drafted(prompt_tokens: int, tmp_path: Path) -> None:
    """B06: it knows 64 positions, the target more."""
    short = load_model(make_tiny_model(tmp_path, "llama", max_position_embeddings=64))
    drafter = DraftModel(short.model, VOCAB_SIZE, VOCAB_SIZE, 8)
    _check_beyond_context(drafter, prompt_tokens)


@pytest.mark.parametrize("prompt_tokens", [50, 63, 64])
def test_beyond_a_heads_context_nothing_is_drafted(prompt_tokens: int) -> None:
    """B06, of an EAGLE-3 head."""
    _check_beyond_context(eagle3_head(8, context_tokens=64), prompt_tokens)


def _check_beyond_context(drafter: StatefulDrafter, prompt_tokens: int) -> None:
    """Drafts up to its last position, then none, and all the while the target's text."""
    spec, name = request(prompts(1, prompt_tokens)[0], 100), drafter.traits.name
    bench = Bench(plan=static_plan(name, 4), limits=_LIMITS, drafters=Drafters(devices=[drafter]))
    (answer,) = bench.run(spec)
    assert answer.token_ids == greedy_text(spec.prompt_ids, 100)
    assert bench.records[-1].carried_draft_tokens == 0
    outcomes = [each for record in bench.records for each in record.outcomes]
    assert bool(outcomes) == (prompt_tokens < 64)
    # A draft needs the row before it alone, so the last one may be a place behind the context.
    assert all(each.context_tokens + len(each.bins) <= 64 + 1 for each in outcomes)
