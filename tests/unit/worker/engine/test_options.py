"""What single options mean, with drafts under judgement and without: one chain on every row."""

import itertools
import math
from collections.abc import Sequence

import pytest

from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Draft, Finish, FinishReason, RequestSpec
from outrider_worker.speculate.drafter import Ask
from outrider_worker.speculate.scripted import ScriptedDrafter, always
from tests.support.engines import Bench, static_plan
from tests.support.laws import (
    END_IDS,
    Way,
    alone,
    ask,
    assert_undisturbed,
    opened,
    prompt,
    run,
    serve,
)
from tests.support.tiny_models import VOCAB_SIZE

WAYS = (
    Way("never", 0),
    Way("always", 1),
    Way("never", 4),
    Way("always", 7),
    Way("device-scripted", 7, "ahead"),
)
EOS = END_IDS[0]


@pytest.mark.parametrize("way", WAYS)
def test_biases_act_on_every_row(way: Way) -> None:
    """A17: not on the bonus token alone."""
    favourite = alone(ask("greedy")).token_ids[0]
    raised, lowered, plain = serve(
        way,
        [
            ask("greedy", 1, logit_bias=((77, 100.0),)),
            ask("greedy", 0, logit_bias=((favourite, -100.0),)),
            ask("greedy", 2),
        ],
    )
    assert set(raised.token_ids) == {77}
    assert favourite not in lowered.token_ids
    assert plain.token_ids == alone(ask("greedy", 2)).token_ids


@pytest.mark.parametrize("way", WAYS)
def test_the_narrowest_min_p_is_greedy(way: Way) -> None:
    """A17."""
    (answer,) = serve(way, [ask("greedy", temperature=1.3, min_p=1.0, seed=3)])
    assert answer.token_ids == alone(ask("greedy")).token_ids


class Echoing(ScriptedDrafter):
    """Gets `right` tokens right, then goes on with the last of them."""

    def __init__(self, spec: RequestSpec, right: int) -> None:
        texts = {spec.prompt_ids: alone(spec).token_ids}
        super().__init__(texts, always(right), VOCAB_SIZE, 8)
        self._right = right

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._echo(draft) for draft in super().propose(asks)]

    def _echo(self, draft: Draft) -> Draft:
        kept = draft.token_ids[: self._right]
        echo = kept[-1:] * (len(draft) - len(kept))
        return Draft((*kept, *echo), draft.bins, draft.asked_tokens)


@pytest.mark.parametrize("draft_tokens", range(8))
def test_a_rows_history_ends_with_the_token_before_it(draft_tokens: int) -> None:
    """A19: "never the same token twice in a row", with drafts that break it all the time."""
    twins = tuple((token, token) for token in range(VOCAB_SIZE))
    spec = ask("greedy", bad_words=twins)
    for right in (1, 3):
        bench = Bench(Echoing(spec, right), static_plan("scripted", draft_tokens))
        (answer,) = run(bench, [spec])
        assert all(a != b for a, b in itertools.pairwise(answer.token_ids))
        assert answer.token_ids == alone(spec).token_ids
        accepted = {o.accepted for r in bench.records for o in r.outcomes if o.verified > right}
        assert accepted <= {right}


@pytest.mark.parametrize("draft_tokens", [0, 1, 4, 7])
@pytest.mark.parametrize("resumed", [0, 3])
def test_min_tokens_counts_tokens_not_steps(draft_tokens: int, resumed: int) -> None:
    """A10: the end is wanted from the first token on, and comes right behind token five."""
    spec = ask("greedy", logit_bias=((EOS, 100.0),), min_tokens=5)
    text = alone(spec).token_ids
    assert len(text) == 5
    rest = ask(
        "greedy", logit_bias=((EOS, 100.0),), min_tokens=5, resumed_ids=tuple(text[:resumed])
    )
    for right, wrong_id in ((8, None), (0, EOS)):
        texts = {spec.prompt_ids: [*text, EOS]}
        drafter = ScriptedDrafter(texts, always(right), VOCAB_SIZE, 8, wrong_id)
        plan = static_plan("scripted", draft_tokens)
        (answer,) = run(Bench(drafter, plan, eos_token_ids=END_IDS), [rest])
        assert answer.token_ids == text[resumed:]
        assert answer.end == Finish(FinishReason.STOP_TOKEN, EOS)


@pytest.mark.parametrize("way", WAYS)
def test_logprobs_are_of_the_targets_own_law(way: Way) -> None:
    """A24: of what was emitted, before temperature and penalties, never of a one-hot draft."""
    plain, penalised = (
        ask("logprobs", top_logprobs=20),
        ask("greedy", 1, repetition_penalty=1.5, top_logprobs=20),
    )
    answers = serve(way, [plain, penalised])
    assert_undisturbed(way, [plain, penalised], answers)
    for answer in answers:
        assert len(answer.logprobs) == len(answer.token_ids)
        for token, found in zip(answer.token_ids, answer.logprobs, strict=True):
            named = dict(zip(found.top_ids, found.top_logprobs, strict=True))
            assert found.logprob < -1e-4
            assert named.get(token, found.logprob) == found.logprob
            assert list(found.top_logprobs) == sorted(found.top_logprobs, reverse=True)
            assert 0.3 < sum(map(math.exp, found.top_logprobs)) <= 1 + 1e-6


@pytest.mark.parametrize("way", [Way("always", 7), Way("device-scripted", 7, "ahead")])
def test_logprobs_to_the_end_of_the_context(way: Way) -> None:
    """A23: the last tokens before the limit leave less and less room for drafts."""
    tokens = len(prompt(0))
    limits = SchedulerLimits(4, max_context_tokens=tokens + 40, prefill_chunk_tokens=24)
    specs = [
        ask("greedy", max_tokens=40, top_logprobs=2),
        ask("temperature", 1, max_tokens=39, top_logprobs=2),
    ]
    answers = serve(way, specs, limits=limits)
    assert_undisturbed(way, specs, answers)
    assert [len(answer.token_ids) for answer in answers] == [40, 39]


def _company(order: tuple[int, ...]) -> tuple[list[RequestSpec], int]:
    """A greedy canary and three that sample, in this order; where the canary is."""
    four = [
        ask("greedy", 0),
        ask("temperature", 1),
        ask("top-k", 2, seed=0),
        ask("presence", 3),
    ]
    return [four[place] for place in order], order.index(0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_greedy_canary_among_others(order: tuple[int, ...]) -> None:
    """A12: sampling modes of one batch never reach one another, in whatever order they sit."""
    specs, canary = _company(order)
    way = Way("device-scripted", 3, "ahead") if order[0] % 2 else Way("list", 3)
    answers = serve(way, specs)
    assert answers[canary].token_ids == alone(specs[canary]).token_ids
    assert_undisturbed(way, specs, answers)


@pytest.mark.parametrize("crossing", ["cap", "stop", "both"])
def test_no_count_exceeds_what_was_delivered(crossing: str) -> None:
    """A05: an accepted run that crosses a stop id and the cap is counted as it was cut."""
    text = alone(ask("greedy", 4, repetition_penalty=1.5)).token_ids
    stop = {"stop_token_ids": frozenset({text[5]})} if crossing != "cap" else {}
    cap = {"max_tokens": 6 if crossing == "cap" else 5} if crossing != "stop" else {}
    spec = ask("greedy", 4, repetition_penalty=1.5, **stop, **cap)
    whole = {spec.prompt_ids: text}
    bench = Bench(ScriptedDrafter(whole, always(8), VOCAB_SIZE, 8), static_plan("scripted", 8))
    (answer,) = run(bench, [spec])
    assert answer.token_ids == text[: 6 if crossing == "cap" else 5]
    reason = FinishReason.STOP_TOKEN if crossing == "stop" else FinishReason.LENGTH
    assert isinstance(answer.end, Finish)
    assert answer.end.reason is reason
    assert answer.totals is not None
    assert answer.totals.accepted_tokens == answer.accepted_tokens <= len(answer.token_ids) - 1
    assert sum(r.emitted_tokens + r.first_tokens for r in bench.records) == len(answer.token_ids)
    assert sum(r.accepted_tokens for r in bench.records) == answer.accepted_tokens


@pytest.mark.parametrize("drafter", ["ngram", "device-ngram"])
@pytest.mark.parametrize("mode", ["in-step", "ahead"])
def test_near_repeats_double_no_token(drafter: str, mode: str) -> None:
    """A27: records that all but repeat, looked up at every place."""
    record = [40, 41, 42, 43, 44, 45, 46]
    text = tuple(token + (place == n % 7) for n in range(9) for place, token in enumerate(record))
    specs = [ask("greedy", prompt_ids=text[: 63 - cut], max_tokens=60) for cut in range(4)]
    specs.append(ask("greedy", prompt_ids=text, logit_bias=tuple((t, 9.0) for t in record)))
    way = Way(drafter, 7, mode)
    with opened(way, specs) as bench:
        answers = run(bench, specs)
    assert_undisturbed(way, specs, answers)
    assert sum(record.accepted_tokens for record in bench.records) > 10
