"""An answer that has left its prediction for good: another drafter goes on, counted as its own."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.tally import tally
from outrider_worker.engine.types import RequestSpec, SpeculationLimits
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.drafter import PREDICTED
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.predicted import PredictedDrafter
from outrider_worker.streams import EmulatedStream, ImmediateStream
from tests.support.engines import Answer, Bench, static_plan, ticking
from tests.support.laws import LIMITS, alone, ask, itself

K = 5
TOKENS = 110


def plan(*drafters: str) -> Plan:
    """Each of them drafts K tokens, all verified."""
    plans = [static_plan(name, K) for name in drafters]
    return replace(
        plans[0], budgets={name: each for p in plans for name, each in p.budgets.items()}
    )


def bench(drafters: Drafters | None = None, **settings: object) -> Bench:
    """Without a prediction, n-gram drafts."""
    drafters = drafters or Drafters([PredictedDrafter(K), NgramDrafter(K)])
    merged = {"plan": plan(*drafters.names), "limits": LIMITS, **settings}
    return Bench(drafters=drafters, max_draft_tokens=K, **merged)  # type: ignore[arg-type]


def asked(number: int) -> RequestSpec:
    """Sampled, of a text that often repeats itself."""
    bias = ((40, 5.0), (50, 4.8))
    return ask("temperature", number, max_tokens=TOKENS, ignore_eos=True, logit_bias=bias)


def wrongly_predicting(number: int = 0) -> RequestSpec:
    """Its prediction is wrong from the first token on."""
    spec = asked(number)
    unsaid = next(token for token in range(3, 250) if token not in alone(spec).token_ids)
    return replace(spec, prediction_ids=(unsaid,) * 40)


def without_prediction(spec: RequestSpec) -> RequestSpec:
    return replace(spec, prediction_ids=())


def drafted_by(served: Bench, spec: RequestSpec) -> list[str]:
    """Who drafted for a request, in turn."""
    outcomes = (each for record in served.records for each in record.outcomes)
    names = [each.drafter for each in outcomes if each.request == spec.key]
    return [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]]


def check_texts(specs: Sequence[RequestSpec], answers: Sequence[Answer]) -> None:
    for spec, answer in zip(specs, answers, strict=True):
        expected = alone(without_prediction(spec))
        assert (answer.token_ids, answer.end) == (expected.token_ids, expected.end)
        assert answer.logprobs == expected.logprobs


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_in_line_goes_on_and_counts_are_its_own(ahead: bool) -> None:
    """Beside requests that still follow their predictions, and ones that have none."""
    left, right, plain = wrongly_predicting(0), asked(1), asked(2)
    right = replace(right, prediction_ids=tuple(alone(right).token_ids))
    stream = EmulatedStream() if ahead else ImmediateStream()
    served = bench(stream=stream)
    answers = served.run(left, right, plain)
    stream.close()
    check_texts([left, right, plain], answers)
    assert [drafted_by(served, each) for each in (left, right, plain)] == [
        [PREDICTED, "ngram"], [PREDICTED], ["ngram"]
    ]  # fmt: skip
    totals = answers[0].totals
    assert totals is not None
    assert totals.accepted_tokens > 0 == totals.accepted_prediction_tokens
    by_ngram = [
        sum(cell.accepted) for key, cell in tally(served.records).items() if key[0] == "ngram"
    ]
    assert sum(by_ngram) >= totals.accepted_tokens


def test_it_then_takes_as_few_rounds_as_if_nothing_had_been_predicted() -> None:
    """From where it is given up on."""
    spec = wrongly_predicting()
    plain, left = bench(), bench()
    plain.run(without_prediction(spec))
    left.run(spec)
    late = [record for record in left.records if record.carried_draft_tokens]
    assert len(left.records) <= 64 + len(plain.records)
    assert sum(record.accepted_tokens for record in late) > 0.2 * sum(
        record.accepted_tokens for record in plain.records
    )


def test_one_with_a_state_was_not_fed_and_does_not_go_on() -> None:
    """The host need not wait for each round any more, though: nobody on it drafts."""
    served = bench(Drafters([PredictedDrafter(K)], [itself()]))
    spec = wrongly_predicting()
    check_texts([spec], served.run(spec))
    assert drafted_by(served, spec) == [PREDICTED]
    assert not any(record.next_draft_tokens for record in served.records[-30:])


def test_a_request_that_named_its_drafter_gets_no_other() -> None:
    served = bench()
    spec = replace(wrongly_predicting(), speculation=SpeculationLimits(drafter=PREDICTED))
    check_texts([spec], served.run(spec))
    assert drafted_by(served, spec) == [PREDICTED]


def test_preempted_ones_stay_with_who_went_on() -> None:
    """A pool for less than all of them."""
    specs = [wrongly_predicting(number) for number in range(4)]
    limits = SchedulerLimits(4, max_context_tokens=256)
    served = bench(limits=limits, pool_pages=1 + 9, prefix_cache=False)
    check_texts(specs, served.run(*specs))
    prompts = sum(len(spec.prompt_ids) for spec in specs)
    assert sum(record.prefill_tokens for record in served.records) > prompts, "preempted"
    assert all(drafted_by(served, spec) == [PREDICTED, "ngram"] for spec in specs)


def test_on_the_device_rounds_run_ahead_again() -> None:
    """n-gram works there too: once nobody has to wait for the host, nobody does."""
    drafters = Drafters([PredictedDrafter(K), NgramDrafter(K)], [DeviceNgramDrafter(K)])
    stream = EmulatedStream(latency_s=0.001)
    served = bench(drafters, stream=stream, now_s=ticking(1.0))
    spec = wrongly_predicting()
    check_texts([spec], served.run(spec))
    stream.close()
    assert drafted_by(served, spec) == [PREDICTED, "ngram"]
    modes = [record.launch_mode.value for record in served.records]
    assert modes[5] == "in_step"
    assert modes[-1] == "ahead"
