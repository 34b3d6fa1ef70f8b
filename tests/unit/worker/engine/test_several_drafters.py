"""Several drafters in one worker: who drafts for whom, in one round, each counted as its own."""

from dataclasses import replace

import pytest

from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.plans import DrafterBudget, Plan
from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import RequestSpec, SpeculationLimits
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.drafter import PREDICTED
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.predicted import PredictedDrafter
from outrider_worker.streams import DeviceStream, EmulatedStream, ImmediateStream
from tests.support.engines import Answer, Bench, greedy_text, request, ticking
from tests.support.laws import itself, prompt

_LENGTHS = {"ngram": 3, PREDICTED: 6, "draft": 2}
_LIMITS = SchedulerLimits(16, max_context_tokens=256, prefill_chunk_tokens=40)


def _plan(verify_all: bool = True) -> Plan:
    """Each drafter's own length; the rows of all drafts, or of half of them."""
    ladder = tuple(range(1, 17))
    budgets = {
        name: DrafterBudget(
            (tokens,) * len(ladder),
            tuple(
                tuple(n + (n * d if verify_all else n * d // 2) for d in range(tokens + 1))
                for n in ladder
            ),
        )
        for name, tokens in _LENGTHS.items()
    }
    return Plan(1, ladder, budgets, validity_s=1e9)


def _loaded(twin: bool = False) -> Drafters:
    return Drafters(
        [NgramDrafter(8), PredictedDrafter(8)],
        [itself(), *([DeviceNgramDrafter(8)] if twin else [])],
    )


def _bench(
    stream: DeviceStream | None = None, verify_all: bool = True, twin: bool = False
) -> Bench:
    return Bench(
        plan=_plan(verify_all),
        drafters=_loaded(twin),
        limits=_LIMITS,
        stream=stream or ImmediateStream(),
        now_s=ticking(1.0),  # a host so slow that it had better not be waited for
    )


def _named(name: str, number: int, **changes: object) -> RequestSpec:
    limits = SpeculationLimits(drafter=name, **changes)  # type: ignore[arg-type]
    return request(prompt(number), 50, speculation=limits)


def _predicting(number: int) -> RequestSpec:
    spec = request(prompt(number), 50)
    return replace(spec, prediction_ids=tuple(greedy_text(spec.prompt_ids, 50)))


def _drafters_of(bench: Bench, spec: RequestSpec) -> set[str]:
    outcomes = (each for record in bench.records for each in record.outcomes)
    return {each.drafter for each in outcomes if each.request == spec.key}


def _check_text(specs: list[RequestSpec], answers: list[Answer]) -> None:
    for spec, answer in zip(specs, answers, strict=True):
        assert answer.token_ids == greedy_text(spec.prompt_ids, spec.sampling.max_tokens)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("verify_all", [True, False])
def test_each_request_is_drafted_for_by_its_own(asynchronous: bool, verify_all: bool) -> None:
    """By name, by prediction, or by what is left: the one that has been trained."""
    bench = _bench(EmulatedStream() if asynchronous else None, verify_all)
    specs = [_named("ngram", 1), _predicting(2), request(prompt(3), 50), _named("draft", 4)]
    answers = bench.run(*specs)
    bench.stream.close()
    assert [_drafters_of(bench, spec) for spec in specs] == [
        {"ngram"}, {PREDICTED}, {"draft"}, {"draft"}
    ]  # fmt: skip
    _check_text(specs, answers)
    for outcome in (each for record in bench.records for each in record.outcomes):
        assert outcome.asked_tokens <= _LENGTHS[outcome.drafter]
    for answer in answers[1:]:
        assert answer.totals is not None
        assert answer.totals.accepted_tokens > 20
    asked = max(record.carried_draft_tokens for record in bench.records)
    assert asked == max(_LENGTHS.values())


def test_a_round_verifies_each_drafters_part() -> None:
    """Four requests of which two are the head's: half of what it would get for four."""
    bench = _bench(verify_all=False)
    specs = [_named("draft", 1), _named("draft", 2), _predicting(3), _predicting(4)]
    bench.run(*specs)
    full = [
        record
        for record in bench.records
        if record.requests == 4 and record.pool_tokens == 2 * (2 + 6)
    ]
    assert full
    assert {record.verified_tokens for record in full} == {2 * 1 + 2 * 3}


def test_rounds_run_ahead_where_no_host_drafter_has_a_part() -> None:
    for name, modes in (("draft", {LaunchMode.AHEAD}), ("ngram", {LaunchMode.IN_STEP})):
        bench = _bench(EmulatedStream())
        bench.run(_named(name, 1), _named(name, 2))
        bench.stream.close()
        drafting = [each for each in bench.records if each.next_draft_tokens]
        assert {record.launch_mode for record in drafting} == modes


def test_two_drafters_on_the_device_draft_in_one_step() -> None:
    """After some rounds in step, n-gram has its place on the device beside the model."""
    bench = _bench(EmulatedStream(latency_s=0.002), twin=True)
    specs = [
        *(_named("ngram", number) for number in range(3)),
        *(_named("draft", number) for number in range(3, 6)),
    ]
    answers = bench.run(*specs)
    bench.stream.close()
    _check_text(specs, answers)
    assert [_drafters_of(bench, spec) for spec in specs] == [{"ngram"}] * 3 + [{"draft"}] * 3
    ahead = [each for each in bench.records if each.launch_mode is LaunchMode.AHEAD]
    assert any({each.drafter for each in record.outcomes} >= {"ngram", "draft"} for record in ahead)


def test_a_request_caps_or_refuses_its_drafts() -> None:
    bench = _bench()
    capped, refused = _named("draft", 1, max_draft_tokens=1), _named("draft", 2, enabled=False)
    answers = bench.run(capped, refused)
    _check_text([capped, refused], answers)
    outcomes = [each for record in bench.records for each in record.outcomes]
    assert {each.asked_tokens for each in outcomes if each.request == capped.key} == {1}
    assert _drafters_of(bench, refused) == set()


def test_without_a_prediction_nothing_is_predicted() -> None:
    only = Drafters([PredictedDrafter(8)])
    assert only.choose(request(prompt(1), 5)) == ""
    assert only.choose(_predicting(1)) == PREDICTED
    assert Drafters([NgramDrafter(8), PredictedDrafter(8)]).choose(request(prompt(1), 5)) == "ngram"
    bench = Bench(plan=_plan(), drafters=only)
    _check_text([spec := request(prompt(1), 30)], bench.run(spec))


def test_a_seat_keeps_nothing_of_who_drafted_there() -> None:
    """B15, one seat: a request of the model's after one of n-gram's, and the other way round."""
    limits = SchedulerLimits(1, max_context_tokens=256)
    for names in (("ngram", "draft"), ("draft", "ngram")):
        totals = []
        for specs in ([_named(names[0], 1), _named(names[1], 2)], [_named(names[1], 2)]):
            bench = Bench(plan=_plan(), drafters=_loaded(), limits=limits, prefix_cache=False)
            answers = [bench.run(spec)[0] for spec in specs]
            totals.append(answers[-1].totals)
        assert totals[0] == totals[1]
        assert totals[0] is not None
        assert totals[0].accepted_tokens > 0
