"""Suffix decoding against plain searches of the whole text."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.types import Draft, RequestKey, RequestSpec, SamplingParams
from outrider_worker.speculate.drafter import Ask
from outrider_worker.speculate.scores import score_bin
from outrider_worker.speculate.suffix import SharedMemory, SuffixDrafter, SuffixSettings
from outrider_worker.speculate.suffix_automaton import SuffixAutomaton

KEY = RequestKey("o", "r")
DEPTH = 6
SETTINGS = SuffixSettings(depth_tokens=DEPTH)
texts = st.integers(1, 4).flatmap(lambda top: st.lists(st.integers(0, top), max_size=50))


def places(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Slow and obvious: where `part` ends in `text`."""
    size = len(part)
    return [end for end in range(size, len(text) + 1) if text[end - size : end] == part]


def known_ends(text: list[int], tail: list[int], at_least: int) -> list[int]:
    """Lengths of the ends of `tail` found often enough, longest first, one for each set of places:
    ends of `tail` that are found at the same places of `text` are one context."""
    lengths: dict[tuple[int, ...], int] = {}
    for size in range(1, min(DEPTH - 1, len(tail)) + 1):
        found = tuple(places(text, tail[-size:]))
        if len(found) >= at_least:
            lengths[found] = size
    return sorted(lengths.values(), reverse=True)


def follower(text: list[int], context: list[int]) -> tuple[int, int, int, int] | None:
    """(token, tokens in common, times, chances): what followed most often, the latest at a tie."""
    for size in range(min(len(context), DEPTH - 1), 0, -1):
        ends = [end for end in places(text, context[-size:]) if end < len(text)]
        if ends:
            times, last = Counter(text[end] for end in ends), {text[end]: end for end in ends}
            token = max(times, key=lambda each: (times[each], last[each]))
            return token, size, times[token], len(ends)
    return None


def reference_draft(text: list[int], asked: int) -> tuple[list[int], list[float]]:
    """The path with the most expected tokens, over all ends that occurred before."""
    best: tuple[list[int], list[float]] = ([], [])
    for size in known_ends(text, text, 2)[:8]:
        path, probability = text[-size:], 1.0
        odds: list[float] = []
        while len(odds) < min(asked, size) and (found := follower(text, path)) is not None:
            token, common, times, chances = found
            probability *= times / (chances + 1 / common)
            if probability < SETTINGS.min_path_probability:
                break
            odds.append(probability)
            path = [*path, token]
        if sum(odds) > sum(best[1]) + 1e-12:
            best = path[size:], odds
    return best


def proposed(drafter: SuffixDrafter, key: RequestKey, asked: int) -> Draft:
    (draft,) = drafter.propose([Ask(key, asked)])
    return draft


@given(text=texts, cut=st.integers(0, 50), asked=st.integers(1, 8))
def test_a_draft_is_what_a_search_of_the_whole_text_finds(
    text: list[int], cut: int, asked: int
) -> None:
    """However the text came in; the bins are those of the path's probabilities."""
    drafter = SuffixDrafter(8, SETTINGS)
    drafter.prefill(KEY, text[:cut])
    for token in text[cut:]:
        drafter.observe(KEY, [token])
    token_ids, odds = reference_draft(text, asked)
    draft = proposed(drafter, KEY, asked)
    assert draft == Draft(tuple(token_ids), tuple(map(score_bin, odds)), asked)


@given(parts=st.lists(texts, min_size=1, max_size=4), tail=texts)
def test_other_texts_are_found_and_never_across_their_borders(
    parts: list[list[int]], tail: list[int]
) -> None:
    automaton, whole = SuffixAutomaton(DEPTH), list[int]()
    for number, part in enumerate(parts):
        automaton.extend(part)
        automaton.divide()
        whole += [*part, -2 - number]
    assert automaton.tokens == len(whole)
    contexts = list(automaton.matches(tail))
    assert [context.tokens for context in contexts] == known_ends(whole, tail, 1)
    for context in contexts:
        step = automaton.step(context)
        followers = {n for n in places(whole, tail[-context.tokens :]) if whole[n] >= 0}
        if step is None or step.context.tokens < context.tokens:
            assert not followers, "it had been followed"
        else:
            assert step.token_id in {whole[n] for n in followers}


@pytest.mark.parametrize("alphabet", [1, 2, 1000])
def test_the_work_for_one_token_does_not_grow_with_the_text(alphabet: int) -> None:
    """Two states for each token at most; a chain of ends no longer than the depth."""
    choice = random.Random(1)
    automaton = SuffixAutomaton(DEPTH)
    automaton.extend(choice.randrange(alphabet) for _ in range(2000))
    assert len(automaton._link) <= 2 * 2000
    assert len(automaton._end_states) <= DEPTH


def test_a_match_that_lasted_long_is_believed_to_last() -> None:
    """p tokens in common once: p / (p + j) for the j-th draft."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    drafter = SuffixDrafter(8)
    drafter.prefill(KEY, [*text, 0, *text[:4]])
    draft = proposed(drafter, KEY, 8)
    assert draft.token_ids == (5, 6, 7, 8), "as long as the match"
    assert draft.bins == tuple(score_bin(4 / (4 + j)) for j in range(1, 5))


def test_what_followed_more_often_wins_and_the_improbable_is_not_drafted() -> None:
    drafter = SuffixDrafter(8, replace(SETTINGS, draft_tokens_per_match=8))
    drafter.prefill(KEY, [7, 1, 8, 5, 7, 1, 8, 6, 7, 2, 9, 4, 7])
    assert proposed(drafter, KEY, 2).token_ids == (1, 8)
    strict = SuffixDrafter(8, replace(SETTINGS, min_path_probability=0.6))
    strict.prefill(KEY, [5, 1, 6, 5])
    assert proposed(strict, KEY, 8).token_ids == ()


def spec(name: str, salt: bytes, prompt: Sequence[int]) -> RequestSpec:
    return RequestSpec(RequestKey("o", name), tuple(prompt), SamplingParams(), tenant_salt=salt)


def answered(drafter: SuffixDrafter, name: str, salt: bytes, answer: Sequence[int]) -> None:
    """A request from begin to end."""
    one = spec(name, salt, [90, 91])
    drafter.begin(one)
    drafter.prefill(one.key, [*one.prompt_ids])
    drafter.observe(one.key, answer)
    drafter.release(one.key)


@pytest.mark.parametrize(
    ("shared_tokens", "salt", "expected"),
    [(1000, b"a", (3, 4)), (1000, b"b", ()), (0, b"a", ())],
    ids=["shared", "another tenant", "off"],
)
def test_finished_answers_serve_their_own_tenant_where_shared(
    shared_tokens: int, salt: bytes, expected: tuple[int, ...]
) -> None:
    drafter = SuffixDrafter(8, SuffixSettings(shared_tokens=shared_tokens))
    answered(drafter, "first", b"a", [1, 2, 3, 4, 5])
    second = spec("second", salt, [8, 1, 2])
    drafter.begin(second)
    drafter.prefill(second.key, second.prompt_ids)
    assert proposed(drafter, second.key, 8).token_ids == expected


def test_prompts_are_not_shared() -> None:
    drafter = SuffixDrafter(8, SuffixSettings(shared_tokens=1000))
    answered(drafter, "first", b"a", [1, 2, 3])
    second = spec("second", b"a", [8, 90])
    drafter.begin(second)
    drafter.prefill(second.key, second.prompt_ids)
    assert proposed(drafter, second.key, 8).token_ids == ()


def test_shared_memory_is_bounded_and_forgets_the_oldest() -> None:
    settings = SuffixSettings(shared_tokens=100, tenants=2)
    memory = SharedMemory(settings)
    for number in range(30):
        memory.add([3 * number, 3 * number + 1, 3 * number + 2])
        assert memory.tokens <= 100
    oldest, latest = (memory.paths([3 * number], 1, settings) for number in (0, 29))
    assert [path.token_ids for path in oldest] == [(), ()]
    assert [path.token_ids for path in latest] == [(), (88,)]
    memory.add(range(1000))
    assert memory.tokens <= 100

    drafter = SuffixDrafter(8, settings)
    for salt in (b"a", b"b", b"a", b"c"):
        answered(drafter, "r", salt, [1, 2, 3])
    assert list(drafter._memories) == [b"a", b"c"]
