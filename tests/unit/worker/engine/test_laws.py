"""The five laws, for every drafter and every K, alone and in a batch, greedy and seeded."""

from collections.abc import Callable

import pytest

from outrider_worker.engine.plans import Plan
from outrider_worker.engine.types import Finish, FinishReason, SpeculationLimits
from outrider_worker.speculate.drafter import Drafter
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.scripted import Script, ScriptedDrafter, always, listed
from tests.support.engines import Bench, greedy_text, prompts, request, static_plan, undisturbed
from tests.support.tiny_models import VOCAB_SIZE

K_VALUES = (1, 3, 7)
LONG = 64
PROMPTS = prompts(5)
PROMPT = PROMPTS[0]


def _scripted(script: Script, max_draft: int = 8) -> Drafter:
    continuations = {prompt: greedy_text(prompt, LONG) for prompt in PROMPTS}
    return ScriptedDrafter(continuations, script, VOCAB_SIZE, max_draft)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(8),
    "scripted-never": lambda: _scripted(always(0)),
    "scripted-always": lambda: _scripted(always(8)),
    "scripted-mixed": lambda: _scripted(listed([0, 2, 7, 1, 3])),
}


@pytest.fixture(params=sorted(DRAFTERS))
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return DRAFTERS[request.param]()


@pytest.fixture(params=K_VALUES)
def plan(request: pytest.FixtureRequest, drafter: Drafter) -> Plan:
    return static_plan(drafter.traits.name, request.param)


def test_prefix_law(drafter: Drafter, plan: Plan) -> None:
    """max_tokens = m gives exactly the first m tokens of a longer answer, finish `length`."""
    text = greedy_text(PROMPT, LONG)
    limits = list(range(1, 3 * 8 + 1))
    answers = Bench(drafter, plan).run(*(request(PROMPT, m) for m in limits))
    for m, answer in zip(limits, answers, strict=True):
        assert answer.token_ids == text[:m]
        assert answer.end == Finish(FinishReason.LENGTH)


def test_stop_law(drafter: Drafter, plan: Plan) -> None:
    """Any token of the text as a stop id cuts right before its first occurrence (A01, A03)."""
    text = greedy_text(PROMPT, LONG)
    stops = list(dict.fromkeys(text))[:20]
    answers = Bench(drafter, plan).run(
        *(request(PROMPT, LONG, stop_token_ids=frozenset({stop})) for stop in stops)
    )
    for stop, answer in zip(stops, answers, strict=True):
        assert answer.token_ids == text[: text.index(stop)]
        assert answer.end == Finish(FinishReason.STOP_TOKEN, stop)


def test_parity_law_in_a_batch(drafter: Drafter, plan: Plan) -> None:
    """Greedy and seeded texts in a mixed batch are those of each request alone, without drafts."""
    specs = [request(prompt, LONG) for prompt in PROMPTS]
    specs += [
        request(prompt, LONG, temperature=t, top_p=p, top_k=k, seed=7 + i)
        for i, (prompt, (t, p, k)) in enumerate(
            zip(PROMPTS, [(0.7, 1.0, 0), (1.0, 0.9, 0), (1.3, 1.0, 40), (1, 0.8, 50), (2, 1, 0)],
                strict=True)
        )
    ]  # fmt: skip
    together = Bench(drafter, plan).run(*specs)
    for spec, answer in zip(specs, together, strict=True):
        assert answer.token_ids == undisturbed(spec)


def test_count_law(drafter: Drafter, plan: Plan) -> None:
    """Counters are sums over requests; emitted = accepted + one per request-round + first."""
    bench = Bench(drafter, plan)
    answers = bench.run(*(request(prompt, LONG) for prompt in PROMPTS))
    tokens = sum(len(answer.token_ids) for answer in answers)
    records = bench.records
    assert tokens == sum(r.emitted_tokens + r.first_tokens for r in records)
    assert sum(r.first_tokens for r in records) == len(PROMPTS)
    rounds = sum(r.requests for r in records)
    accepted = sum(r.accepted_tokens for r in records)
    # A run cut by max_tokens may lose its bonus token, and only that.
    assert 0 <= accepted + rounds - sum(r.emitted_tokens for r in records) <= len(PROMPTS)
    assert accepted == sum(answer.accepted_tokens for answer in answers)
    outcomes = [outcome for record in records for outcome in record.outcomes]
    totals = [answer.totals for answer in answers]
    assert all(o.accepted <= o.verified <= len(o.bins) <= o.asked_tokens for o in outcomes)
    assert sum(len(o.bins) for o in outcomes) == sum(t.drafted_tokens for t in totals if t)
    assert sum(o.verified for o in outcomes) == sum(t.verified_tokens for t in totals if t)
    assert sum(o.accepted for o in outcomes) == accepted


def test_conservation_under_aborts(drafter: Drafter, plan: Plan) -> None:
    """Whatever happens to requests on the way, an idle engine owns nothing."""
    bench = Bench(drafter, plan, pool_pages=9)
    for number in range(12):
        bench.submit(request(PROMPTS[number % 5], 40 + number))
    for round_ in range(60):
        bench.step()
        live = [r.spec.key for r in bench.scheduler.everyone()]
        if live and round_ % 3 == 0:
            bench.cancel(live[round_ % len(live)])
    bench.run()
    assert all(len(answer.ends) == 1 for answer in bench.answers.values())


def test_scripted_acceptance_is_counted_as_scripted() -> None:
    """Accept 2 of 4 in every round: 2 accepted per step, 3 tokens per step (G07)."""
    bench = Bench(_scripted(always(2)), static_plan("scripted", 4))
    (answer,) = bench.run(request(PROMPT, 31))
    assert answer.totals is not None
    assert answer.totals.verify_steps == 10
    assert answer.totals.accepted_tokens == 20
    assert answer.totals.acceptance_histogram == [0, 0, 10]
    assert len(answer.token_ids) == 1 + 10 * 3


def test_a_wrong_first_draft_is_never_accepted() -> None:
    """A14: the first draft is judged by the last committed token's logits."""
    bench = Bench(_scripted(always(0)), static_plan("scripted", 1))
    (answer,) = bench.run(request(PROMPT, 20))
    assert answer.totals is not None
    assert answer.totals.verified_tokens >= 18
    assert answer.totals.accepted_tokens == 0


def test_drafted_end_of_sequence_ends_nothing() -> None:
    """A06: a drafter that always proposes EOS changes nothing when the target disagrees."""
    text = greedy_text(PROMPT, LONG)
    eos = next(token for token in range(3, 250) if token not in text)
    continuations = {PROMPT: text}
    drafter = ScriptedDrafter(continuations, always(0), VOCAB_SIZE, 8, wrong_token_id=eos)
    bench = Bench(drafter, static_plan("scripted", 4), eos_token_ids=[eos])
    (answer,) = bench.run(request(PROMPT, LONG))
    assert answer.token_ids == text
    assert answer.accepted_tokens == 0


@pytest.mark.parametrize("offset", range(9))
def test_end_of_sequence_inside_an_accepted_run(offset: int) -> None:
    """A03: the run is cut at the first EOS, the rest and the bonus token are dropped."""
    text = greedy_text(PROMPT, LONG)
    position = next(place for place in range(offset, LONG) if text.index(text[place]) == place)
    bench = Bench(_scripted(always(8)), static_plan("scripted", 8), eos_token_ids=[text[position]])
    (answer,) = bench.run(request(PROMPT, LONG))
    assert answer.token_ids == text[:position]
    assert answer.end == Finish(FinishReason.STOP_TOKEN, text[position])


def test_a_request_may_cap_or_switch_off_drafting() -> None:
    bench = Bench(_scripted(always(8)), static_plan("scripted", 7))
    off, capped, free = bench.run(
        request(PROMPTS[0], 40, speculation=SpeculationLimits(enabled=False)),
        request(PROMPTS[1], 40, speculation=SpeculationLimits(max_draft_tokens=2)),
        request(PROMPTS[2], 40),
    )
    drafted = [answer.totals.drafted_tokens for answer in (off, capped, free) if answer.totals]
    assert drafted[0] == 0
    assert 0 < drafted[1] < drafted[2]
    assert capped.totals is not None
    assert len(capped.totals.acceptance_histogram) == 3


def test_resuming_goes_on_as_if_nothing_had_happened() -> None:
    """The noise index counts from the end of the original prompt, resumed ids included."""
    spec = request(PROMPT, LONG, temperature=1.0, seed=99)
    (whole,) = Bench().run(spec)
    for cut in (1, 17, 63):
        resumed = request(PROMPT, LONG, temperature=1.0, seed=99, resumed_ids=whole.token_ids[:cut])
        bench = Bench(NgramDrafter(8), static_plan("ngram", 7))
        (rest,) = bench.run(resumed)
        assert rest.token_ids == whole.token_ids[cut:]
