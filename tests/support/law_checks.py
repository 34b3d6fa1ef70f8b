"""One point of the matrix of laws: an option, or a family's options, served in one way."""

from collections.abc import Sequence
from dataclasses import replace

from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.types import Finish, FinishReason, RequestSpec
from tests.support.engines import Answer, Bench, request
from tests.support.laws import OPTIONS, Way, alone, ask, assert_undisturbed, opened, run

_FAMILY_OPTIONS = ("greedy", "temperature", "repetition", "everything")
_AHEAD = {LaunchMode.AHEAD, LaunchMode.LATE_MASK}


def check_option(way: Way, option: str, company: str) -> None:
    """Parity, count and conservation; in a batch the prefix and the stop law as well."""
    subject = ask(option)
    if company == "alone":
        _serve(way, [subject])
        return
    shorter, stopped = _shorter(subject, way.draft_tokens), _stopped(subject)
    neighbours = [ask(other, number) for number, other in enumerate(_following(option), 1)]
    with opened(way, [subject, *neighbours]) as bench:
        answers = run(bench, [*shorter, subject, *stopped, *neighbours])
        _check_way(way, bench)
    texts = iter(answers)
    for spec in shorter:
        _check_prefix(subject, spec, next(texts))
    assert_undisturbed(way, [subject], [next(texts)])
    for spec in stopped:
        _check_stop(subject, spec, next(texts))
    assert_undisturbed(way, neighbours, list(texts))


def check_family(way: Way) -> None:
    """Greedy, seeded, penalised and constrained requests side by side."""
    _serve(way, [ask(option, number) for number, option in enumerate(_FAMILY_OPTIONS)])


def _serve(way: Way, specs: Sequence[RequestSpec]) -> None:
    with opened(way, specs) as bench:
        answers = run(bench, specs)
        _check_way(way, bench)
    assert_undisturbed(way, specs, answers)


def _check_way(way: Way, bench: Bench) -> None:
    """Drafts were really as right as the script says, and launched as the device allows."""
    accepted = sum(record.accepted_tokens for record in bench.records)
    if way.drafter == "never" or way.draft_tokens == 0:
        assert accepted == 0
    elif way.drafter in ("always", "device-scripted", "device-model"):
        assert accepted > 0
    modes = {record.launch_mode for record in bench.records if record.requests}
    if way.mode == "in-step":
        assert modes == {LaunchMode.IN_STEP}
    elif way.on_device or way.draft_tokens == 0:
        assert modes <= _AHEAD


def _following(option: str) -> list[str]:
    """Two other options, other ones for each."""
    names = list(OPTIONS)
    place = names.index(option)
    return [names[(place + step) % len(names)] for step in (1, 8)]


def _shorter(subject: RequestSpec, draft_tokens: int) -> list[RequestSpec]:
    """The same with max_tokens around the ends of the first rounds; without logprobs."""
    whole = len(alone(subject).token_ids)
    limits = {1, 2, draft_tokens + 1, draft_tokens + 2, 2 * draft_tokens + 3, whole}
    return [_changed(subject, max_tokens=m, top_logprobs=None) for m in limits if m <= whole]


def _check_prefix(subject: RequestSpec, spec: RequestSpec, answer: Answer) -> None:
    """Law one."""
    limit = spec.sampling.max_tokens
    assert answer.token_ids == alone(subject).token_ids[:limit]
    assert answer.end == Finish(FinishReason.LENGTH)


def _stopped(subject: RequestSpec) -> list[RequestSpec]:
    """The same with a token of its text as a stop id.

    None where ids may not stop it at first: then one more of them changes what can be drawn.
    """
    if subject.sampling.min_tokens:
        return []
    text = alone(subject).token_ids
    stops = {text[len(text) * tenths // 10] for tenths in (1, 5, 9)}
    own = subject.sampling.stop_token_ids
    return [_changed(subject, stop_token_ids=own | {stop}) for stop in sorted(stops)]


def _check_stop(subject: RequestSpec, spec: RequestSpec, answer: Answer) -> None:
    """Law two."""
    text = alone(subject).token_ids
    place = next(i for i, token in enumerate(text) if token in spec.sampling.stop_token_ids)
    assert answer.token_ids == text[:place]
    assert answer.end == Finish(FinishReason.STOP_TOKEN, text[place])
    assert answer.logprobs == alone(subject).logprobs[:place]


def _changed(subject: RequestSpec, **sampling: object) -> RequestSpec:
    """With a key of its own, on the same choice."""
    key = replace(request((1,)).key, choice_index=subject.key.choice_index)
    return replace(subject, key=key, sampling=replace(subject.sampling, **sampling))  # type: ignore[arg-type]
