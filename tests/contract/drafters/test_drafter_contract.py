"""What every drafter keeps, on the host or the device, with a state of its own or without.

A new drafter is one line in `SUBJECTS`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import pytest

from outrider_worker.engine.types import MAX_SCORE_BINS, NO_DRAFT, Draft
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.drafter import NO_DRAFTER, known_drafters
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.predicted import PredictedDrafter
from outrider_worker.speculate.scripted import ScriptedDrafter, always
from outrider_worker.speculate.suffix import SuffixDrafter, sharing_suffix_drafter
from outrider_worker.speculate.synthetic import SyntheticDrafter
from tests.contract.drafters.subjects import (
    CONTEXT_TOKENS,
    SEATS,
    DeviceSubject,
    HostSubject,
    K,
    Make,
    StatefulSubject,
    Subject,
    Texts,
)
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import tiny_model
from tests.support.neural_drafters import KINDS
from tests.support.neural_drafters import Make as MakeNeural
from tests.support.tiny_models import VOCAB_SIZE


def repeating(number: int, tokens: int) -> list[int]:
    """A text that comes back to itself, but for a token now and then."""
    period = 5 + number
    return [3 + (17 * number + 7 * (n % period) + (n % 17 == 0)) % 250 for n in range(tokens)]


PROMPTS = {f"r{number}": repeating(number, 30 + 9 * number) for number in range(SEATS)}
ANSWERS = {name: repeating(n, len(p) + 60)[len(p) :] for n, (name, p) in enumerate(PROMPTS.items())}


def texts(answers: Texts) -> Mapping[tuple[int, ...], Sequence[int]]:
    return {tuple(PROMPTS[name]): answer for name, answer in answers.items()}


def stateful(make: MakeNeural) -> Make:
    return lambda _: StatefulSubject(tiny_model(), make(K))


SUBJECTS: dict[str, Make] = {
    "ngram": lambda _: HostSubject(NgramDrafter(K)),
    "suffix": lambda _: HostSubject(SuffixDrafter(K)),
    "suffix-shared": lambda _: HostSubject(sharing_suffix_drafter(K)),
    "predicted": lambda _: HostSubject(PredictedDrafter(K)),
    "scripted": lambda known: HostSubject(ScriptedDrafter(texts(known), always(2), VOCAB_SIZE, K)),
    "device-ngram": lambda _: DeviceSubject(DeviceNgramDrafter(K)),
    "device-scripted": lambda known: DeviceSubject(
        DeviceScripted(texts(known), [2, K, 0], VOCAB_SIZE, K)
    ),
    "synthetic": lambda _: DeviceSubject(SyntheticDrafter([0.9, 0.7, 0.5, 0.3, 0.2, 0.1])),
    **{name: stateful(make_neural) for name, make_neural in KINDS.items()},
}


@pytest.fixture(params=SUBJECTS)
def make(request: pytest.FixtureRequest) -> Callable[[], Subject]:
    """Builds the drafter of one kind, as new."""
    return lambda: SUBJECTS[request.param](ANSWERS)


def started(make: Callable[[], Subject], names: Iterable[str] = PROMPTS) -> Subject:
    """A drafter with some of the requests, each with half of its answer's first tokens said."""
    subject = make()
    for name in names:
        subject.start(name, PROMPTS[name], ANSWERS[name])
        subject.add(name, ANSWERS[name][:7])
    return subject


def everyone(tokens: int) -> dict[str, int]:
    return dict.fromkeys(PROMPTS, tokens)


def check(subject: Subject, draft: Draft, most: int) -> None:
    """What holds for any draft: its length, its ids, its bins, which fall along the chain."""
    assert len(draft) <= min(most, subject.traits.max_draft_tokens)
    assert all(0 <= token_id < VOCAB_SIZE for token_id in draft.token_ids)
    assert all(0 <= each < max(1, subject.traits.score_bins) for each in draft.bins)
    assert list(draft.bins) == sorted(draft.bins, reverse=True)


def test_every_drafter_that_can_be_named_is_here() -> None:
    assert set(known_drafters()) - {NO_DRAFTER} <= set(SUBJECTS)


def test_traits_are_declared_once_and_for_all(make: Callable[[], Subject]) -> None:
    traits = make().traits
    assert traits == make().traits
    assert traits.name
    assert 1 <= traits.max_draft_tokens <= K
    assert 1 <= traits.score_bins <= MAX_SCORE_BINS


@pytest.mark.parametrize("tokens", range(1, K + 1))
def test_drafts_are_no_longer_than_asked_and_of_the_targets_tokens(
    make: Callable[[], Subject], tokens: int
) -> None:
    """B22, and that something is drafted at all; a drafter that is not sparse fills what it may."""
    subject = started(make)
    drafts = subject.drafts(everyone(tokens), tokens)
    for draft in drafts.values():
        check(subject, draft, tokens)
        if draft.token_ids or not subject.traits.sparse:
            assert draft.asked_tokens == tokens
    assert sum(map(len, drafts.values())) > 0


def test_limits_of_requests_are_their_own(make: Callable[[], Subject]) -> None:
    """Room, caps, switched off: each gets at most its own, and 0 is nothing."""
    subject = started(make)
    limits = dict(zip(PROMPTS, (0, 1, 3, K), strict=True))
    for _ in range(2):
        drafts = subject.drafts(limits)
        for name, most in limits.items():
            check(subject, drafts[name], most)
        limits = dict(zip(PROMPTS, (K, 3, 1, 0), strict=True))


def test_more_than_it_can_is_as_much_as_it_can(make: Callable[[], Subject]) -> None:
    subject = started(make)
    for draft in subject.drafts(everyone(K + 3), K + 3).values():
        check(subject, draft, subject.traits.max_draft_tokens)


def test_the_same_text_gives_the_same_drafts(make: Callable[[], Subject]) -> None:
    first, second = started(make), started(make)
    assert first.drafts(everyone(K)) == second.drafts(everyone(K))


def test_proposing_leaves_no_trace(make: Callable[[], Subject]) -> None:
    """There is nothing to roll back: whatever was proposed, of any length, what is said counts."""
    asked, quiet = started(make), started(make)
    for step in range(4):
        asked.drafts(everyone(1 + step))
        asked.drafts(everyone(K))
        for name in PROMPTS:
            said = [*ANSWERS[name][7 + 2 * step :][:1], 5 + step]
            asked.add(name, said)
            quiet.add(name, said)
    assert asked.drafts(everyone(K)) == quiet.drafts(everyone(K))


def test_the_history_may_come_in_any_pieces(make: Callable[[], Subject]) -> None:
    """B14: what was not told for a while is told later, at once, or all anew."""
    steady, late, anew = started(make), started(make), make()
    for name, prompt in PROMPTS.items():
        said = ANSWERS[name][7:25]
        for start in range(0, len(said), 3):
            steady.add(name, said[start : start + 3])
            steady.drafts({name: 1 + start % K})
        late.add(name, said[:5])
        late.add(name, said[5:])
        anew.start(name, prompt, ANSWERS[name])
        anew.add(name, ANSWERS[name][:25])
    assert late.drafts(everyone(K)) == anew.drafts(everyone(K)) == steady.drafts(everyone(K))


def test_neighbours_make_no_difference(make: Callable[[], Subject]) -> None:
    """B21: alone, among others, in any order."""
    together = started(make).drafts(everyone(K))
    backwards = started(make, reversed(PROMPTS)).drafts(dict.fromkeys(reversed(PROMPTS), K))
    assert together == backwards
    for name in PROMPTS:
        assert started(make, [name]).drafts({name: K})[name] == together[name]


def test_a_request_that_has_gone_leaves_nothing_behind(make: Callable[[], Subject]) -> None:
    """B15: the same key and the same seat again, with another text, shorter than the first."""
    used, fresh = started(make), make()
    used.drafts(everyone(K))
    for name in PROMPTS:
        used.stop(name)
    for subject in (used, fresh):
        for name, other in zip(PROMPTS, reversed(PROMPTS), strict=True):
            subject.start(name, PROMPTS[other][:20], ANSWERS[other])
    assert used.drafts(everyone(K)) == fresh.drafts(everyone(K))


def test_a_seat_that_is_left_and_taken_again_goes_on(make: Callable[[], Subject]) -> None:
    """Preempted and resumed: all is told anew, and nothing is lost."""
    steady, moved = started(make), started(make)
    name = next(iter(PROMPTS))
    moved.stop(name)
    moved.start(name, PROMPTS[name], ANSWERS[name])
    moved.add(name, ANSWERS[name][:7])
    assert moved.drafts(everyone(K)) == steady.drafts(everyone(K))


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_text_that_has_hardly_begun(make: Callable[[], Subject], tokens: int) -> None:
    """A prompt of one token, whose only one is the anchor: B10's shortest case."""
    subject = make()
    for name in PROMPTS:
        subject.start(name, PROMPTS[name][:tokens], ANSWERS[name])
    for draft in subject.drafts(everyone(K)).values():
        check(subject, draft, K)


def test_a_text_that_ends_with_the_context(make: Callable[[], Subject]) -> None:
    """Up to the last token there is room for, with as many drafts as fit."""
    subject = make()
    text = Random(1).choices(range(3, 40), k=CONTEXT_TOKENS - K)
    subject.start("full", text, [3])
    for left in reversed(range(K)):
        subject.add("full", [3 + left])
        (draft,) = subject.drafts({"full": left}).values()
        check(subject, draft, left)


def test_a_host_drafter_may_be_asked_about_nobody() -> None:
    """Unknown keys have no drafts, and are let go of without a word."""
    for kind, make_one in SUBJECTS.items():
        subject = make_one(ANSWERS)
        if isinstance(subject, HostSubject):
            subject.stop("nobody")
            (draft,) = subject.drafts({"nobody": K}).values()
            assert draft == NO_DRAFT, kind
