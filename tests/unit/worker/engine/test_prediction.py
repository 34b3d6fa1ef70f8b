"""Predicted output and suffix decoding in an engine: the same text, fewer rounds, honest counts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import (
    FinishReason,
    RequestKey,
    RequestSpec,
    SpeculationTotals,
    TokenNews,
)
from outrider_worker.speculate.drafter import Drafter
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.predicted import PredictedDrafter
from outrider_worker.speculate.suffix import SuffixDrafter
from outrider_worker.streams import EmulatedStream, ImmediateStream
from tests.support.engines import Answer, Bench, static_plan
from tests.support.laws import END_IDS, LIMITS, alone, ask, run

K = 6
WRONG = 7
OPTIONS = ("greedy", "temperature", "everything")


def plan(draft_tokens: int = K) -> Plan:
    """All three drafters draft as much."""
    plans = [static_plan(name, draft_tokens) for name in ("predicted", "suffix", "ngram")]
    return replace(
        plans[0], budgets={name: each for p in plans for name, each in p.budgets.items()}
    )


def bench(first: str = "suffix", **settings: object) -> Bench:
    """Without a prediction, `first` drafts."""
    others: dict[str, Drafter] = {"suffix": SuffixDrafter(K), "ngram": NgramDrafter(K)}
    drafters = Drafters([PredictedDrafter(K), others.pop(first), *others.values()])
    merged = {"plan": plan(), "limits": LIMITS, "eos_token_ids": END_IDS, **settings}
    return Bench(drafters=drafters, max_draft_tokens=K, **merged)  # type: ignore[arg-type]


def predicting(spec: RequestSpec, prediction: Sequence[int]) -> RequestSpec:
    return replace(spec, prediction_ids=tuple(prediction))


def edited(text: Sequence[int]) -> list[int]:
    """A token replaced, two left out, two put in."""
    return [*text[:5], WRONG, *text[6:10], *text[12:16], WRONG, WRONG, *text[16:]]


def counts(answer: Answer) -> tuple[int, int]:
    assert answer.totals is not None
    return answer.totals.accepted_prediction_tokens, answer.totals.rejected_prediction_tokens


def rounds(served: Bench) -> int:
    return sum(record.requests for record in served.records)


def test_a_right_prediction_takes_few_rounds_and_no_draft_is_refused() -> None:
    spec = ask("greedy", max_tokens=50, ignore_eos=True)
    text = alone(spec).token_ids
    served = bench()
    (answer,) = run(served, [predicting(spec, text)])
    assert answer.token_ids == text
    assert answer.totals is not None
    assert counts(answer) == (answer.totals.accepted_tokens, 0)
    assert rounds(served) == 1 + (50 - 2) // (K + 1)


def test_a_wrong_prediction_costs_nothing_and_one_that_begins_well_little() -> None:
    """Off after its first token, which the answer says many times: three drafts in vain."""
    spec = ask("greedy", max_tokens=50, ignore_eos=True)
    text = alone(spec).token_ids
    unsaid = next(token for token in range(3, 250) if token not in text)
    specs = [predicting(spec, [unsaid] * 50)]
    specs.append(predicting(replace(spec, key=RequestKey("o", "well")), [text[0], *[unsaid] * 50]))
    wrong, well = run(bench(), specs)
    assert wrong.token_ids == well.token_ids == text
    assert text.count(text[0]) > 9
    assert (counts(wrong), counts(well)) == ((0, 0), (0, 3 * K))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("ahead", [False, True])
def test_text_is_the_same_with_any_prediction_and_company(option: str, ahead: bool) -> None:
    """Law three, with requests beside that predict nothing and are drafted for by others."""
    specs = [ask(option, number) for number in range(3)]
    text = alone(specs[0]).token_ids
    asked = [predicting(specs[0], edited(text)), predicting(specs[1], text), specs[2]]
    stream = EmulatedStream() if ahead else ImmediateStream()
    answers = run(bench(stream=stream), asked)
    stream.close()
    for spec, answer in zip(specs, answers, strict=True):
        expected = alone(spec)
        assert (answer.token_ids, answer.end) == (expected.token_ids, expected.end)
        assert answer.logprobs == expected.logprobs
    accepted, rejected = counts(answers[0])
    assert accepted >= len(text) // 3
    assert accepted + rejected <= answers[0].totals.verified_tokens  # type: ignore[union-attr]
    assert counts(answers[2]) == (0, 0)


@pytest.mark.parametrize("option", OPTIONS)
def test_suffix_drafts_change_no_text_and_some_are_right(option: str) -> None:
    """A13, A27 for suffix decoding: near repeats, several at once."""
    specs = [ask(option, number, logit_bias=((40, 5.0), (50, 4.8))) for number in range(3)]
    answers = run(bench(), specs)
    for spec, answer in zip(specs, answers, strict=True):
        assert answer.token_ids == alone(spec).token_ids
    totals = [answer.totals for answer in answers if answer.totals]
    assert sum(each.accepted_tokens for each in totals) > 0
    assert all(each.accepted_prediction_tokens == 0 for each in totals)


def test_what_lies_behind_a_stop_was_not_accepted() -> None:
    """A05: the end is inside of an accepted run; what was delivered is what is counted."""
    spec = ask("greedy", max_tokens=40, ignore_eos=True)
    text = alone(spec).token_ids
    stop = next(token for token in text[9:] if token not in text[:9])
    sampling = replace(spec.sampling, stop_token_ids=frozenset({stop}))
    (answer,) = run(bench(), [predicting(replace(spec, sampling=sampling), text)])
    end = text.index(stop)
    assert answer.token_ids == text[:end]
    assert getattr(answer.end, "reason", None) is FinishReason.STOP_TOKEN
    accepted, rejected = counts(answer)
    assert answer.totals is not None
    assert accepted + answer.totals.verify_steps <= end + 1
    assert accepted + rejected == answer.totals.verified_tokens


def test_the_answer_goes_on_beside_its_prediction_on_another_worker() -> None:
    """Tokens that were delivered elsewhere stand in the prediction too."""
    spec = ask("temperature", max_tokens=30, ignore_eos=True)
    text = alone(spec).token_ids
    resumed = predicting(replace(spec, resumed_ids=tuple(text[:13])), text)
    (answer,) = run(bench(), [resumed])
    assert answer.token_ids == text[13:]
    assert counts(answer)[1] == 0
    assert counts(answer)[0] >= 17 - 1 - 3


def test_preempted_requests_find_their_places_again() -> None:
    """A pool for less than all of them: each goes on where it was, and no draft is refused."""
    specs = [ask("greedy", n, max_tokens=60, ignore_eos=True) for n in range(4)]
    asked = [predicting(spec, alone(spec).token_ids) for spec in specs]
    limits = SchedulerLimits(4, max_context_tokens=192)
    served = bench(limits=limits, pool_pages=1 + 6, prefix_cache=False)
    answers = run(served, asked)
    assert [a.token_ids for a in answers] == [alone(spec).token_ids for spec in specs]
    assert sum(record.prefill_tokens for record in served.records) > sum(
        len(spec.prompt_ids) for spec in specs
    ), "somebody was preempted"
    for answer in answers:
        assert counts(answer)[0] > 30


def test_totals_come_with_every_news_of_a_request_with_a_prediction() -> None:
    """Each as it was then: the client may leave at any of them."""
    spec = ask("greedy", max_tokens=40, ignore_eos=True)
    with_prediction = predicting(spec, alone(spec).token_ids)
    seen: dict[str, list[SpeculationTotals | None]] = {"predicting": [], "plain": []}

    class Told(Bench):
        def _on_news(self, round_: int, news: Sequence[TokenNews]) -> None:
            for item in news:
                kind = "predicting" if item.key == with_prediction.key else "plain"
                seen[kind].append(item.totals)
            super()._on_news(round_, news)

    drafters = Drafters([PredictedDrafter(K)])
    run(
        Told(plan=plan(), drafters=drafters, limits=LIMITS, max_draft_tokens=K),
        [with_prediction, ask("greedy", 1)],
    )
    *early, last = seen["plain"]
    assert early == [None] * len(early)
    assert last is not None
    told = [totals.accepted_prediction_tokens for totals in seen["predicting"] if totals]
    assert len(told) == len(seen["predicting"])
    assert told == sorted(told)
    assert told[0] == 0 < told[1] < told[-1]
