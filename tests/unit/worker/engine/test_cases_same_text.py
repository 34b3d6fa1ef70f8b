"""One request, one text: whatever company, drafts, preemption, cache or migration it meets."""

import pytest

from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import RequestSpec
from tests.support.engines import Answer, Bench, static_plan
from tests.support.laws import (
    K_MAX,
    Way,
    alone,
    ask,
    assert_undisturbed,
    opened,
    prompt,
    run,
    serve,
    submit,
    whole_text,
)

WAYS = (
    Way("random", 3),
    Way("ngram", 7),
    Way("device-scripted", 3, "ahead"),
    Way("device-ngram", 7, "ahead"),
)
SAMPLED = ("temperature", "top-p", "presence", "bad-words", "min-tokens", "json", "everything")


@pytest.fixture(params=WAYS, ids=lambda way: f"{way.drafter}-{way.mode}")
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


def _specs() -> list[RequestSpec]:
    return [ask(option, number) for number, option in enumerate(SAMPLED)]


def _preempting(bench: Bench, specs: list[RequestSpec], every: int) -> list[Answer]:
    """Serve them; after every so many steps the youngest or the oldest has to go."""
    answers = [submit(bench, spec) for spec in specs]
    for step in range(1, 400):
        bench.step()
        if step % every == 0 and bench.scheduler.running:
            bench.scheduler.preempt(bench.scheduler.running[-(step // every % 2)])
        if bench.engine.idle:
            break
    bench.run()
    assert bench.scheduler.preemptions > 2
    return answers


@pytest.mark.parametrize("every", [3, 4])
def test_preempted_at_many_points(way: Way, every: int) -> None:
    """B08, C01: grammars in the middle of a value, penalties, end bans: all go on as they were."""
    specs = _specs()
    with opened(way, specs) as bench:
        answers = _preempting(bench, specs, every)
        assert bench.pages.used_pages == 0
    assert_undisturbed(way, specs, answers)


def test_under_load_while_others_come_and_go(way: Way) -> None:
    """More requests than seats, and each of them twice: the second finds the first one's pages."""
    specs = [*_specs(), *_specs()]
    limits = SchedulerLimits(3, max_context_tokens=256, prefill_chunk_tokens=24)
    answers = serve(way, specs, limits=limits)
    assert_undisturbed(way, specs, answers)


def test_found_in_the_prefix_cache_or_not(way: Way) -> None:
    """A cold, a warm and a cacheless engine give the same text; the warm one says what it found."""
    texts = {}
    for cached in (True, False):
        long = [ask(name, prompt_ids=prompt(2, 140), seed=21) for name in ("hot", "json")]
        with opened(way, long, prefix_cache=cached) as bench:
            (cold,) = run(bench, long[:1])
            (warm,) = run(bench, [ask("hot", prompt_ids=prompt(2, 140), seed=21)])
            (constrained,) = run(bench, long[1:])
        texts[cached] = (cold.token_ids, warm.token_ids, constrained.token_ids)
        assert cold.token_ids == warm.token_ids == alone(long[0]).token_ids
        assert [cold.cached_prompt_tokens, warm.cached_prompt_tokens] == [0, 128 * cached]
        assert constrained.logprobs == alone(long[1]).logprobs
    assert texts[True] == texts[False]


@pytest.mark.parametrize(
    "option", ["hot", "repetition", "presence", "bad-words", "json", "everything"]
)
@pytest.mark.parametrize("delivered", [1, 9])
def test_resumed_on_another_worker(way: Way, option: str, delivered: int) -> None:
    """C08: noise, penalties, minimum and grammar count what another worker has delivered."""
    whole = alone(ask(option))
    resumed = ask(option, resumed_ids=tuple(whole.token_ids[:delivered]))
    (rest,) = serve(way, [resumed])
    assert rest.token_ids == whole.token_ids[delivered:]
    assert rest.logprobs == whole.logprobs[delivered:]
    assert rest.end == whole.end


def test_resumed_and_then_preempted(way: Way) -> None:
    whole = [alone(spec) for spec in _specs()]
    resumed = [
        ask(option, number, resumed_ids=tuple(whole[number].token_ids[:3]))
        for number, option in enumerate(SAMPLED)
    ]
    with opened(way, resumed) as bench:
        answers = _preempting(bench, resumed, every=3)
    for answer, text in zip(answers, whole, strict=True):
        assert answer.token_ids == text.token_ids[3:]
        assert answer.end == text.end


def test_every_draft_length_in_turn(way: Way) -> None:
    """B18: K goes up and down through 0…K from step to step, or jumps."""
    specs = _specs()
    lengths = [*range(K_MAX + 1), *range(K_MAX, -1, -1), 0, 8, 0, 1, 8, 2]
    with opened(way, specs, plan=None) as bench:
        stream = bench.plans.open_stream()
        name = way.plan_name
        answers = [submit(bench, spec) for spec in specs]
        for version in range(1, 300):
            tokens = lengths[version % len(lengths)]
            bench.plans.offer(stream, static_plan(name, tokens, version=version), 0.0)
            bench.step()
            if bench.engine.idle:
                break
        assert len({record.carried_draft_tokens for record in bench.records}) == K_MAX + 1
    assert_undisturbed(way, specs, answers)


def test_masks_come_late_only_where_a_grammar_is_followed() -> None:
    """While it runs, rounds are judged behind its masks; before and after, they run ahead."""
    way = Way("device-scripted", 3, "ahead")
    specs = [ask("greedy", 0, max_tokens=60), ask("regex", 1)]
    with opened(way, specs) as bench:
        answers = run(bench, specs)
        modes = [record.launch_mode for record in bench.records if record.requests]
    assert_undisturbed(way, specs, answers)
    assert set(modes) == {LaunchMode.LATE_MASK, LaunchMode.AHEAD}
    assert modes[-1] is LaunchMode.AHEAD


def test_whole_texts_hold_the_hidden_end() -> None:
    """What scripted drafters know must reach to the end id, or it is never drafted."""
    spec = ask("stop-ids")
    text = whole_text(spec)
    assert text[-1] in spec.sampling.stop_token_ids
    assert text[:-1] == alone(spec).token_ids
