"""Drafting by lookup, picking rows, judging them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.plans import Plan, ScoreMap
from outrider_worker.engine.types import Draft, Request, RequestKey, RequestSpec, SamplingParams
from outrider_worker.speculate.drafter import Ask, UnknownDrafter, known_drafters, load_drafter
from outrider_worker.speculate.ngram import MIN_MATCH_TOKENS, NgramDrafter
from outrider_worker.speculate.select import chain_scores, pick_prefixes
from outrider_worker.speculate.verify import SamplerMatch
from tests.unit.worker.tensors.judging import Table, certain

KEY = RequestKey("o", "r")
small_texts = st.lists(st.integers(0, 3), min_size=0, max_size=60)


def _reference_match(tokens: list[int]) -> tuple[int, int]:
    """Slow and obvious: longest suffix of 2…4, its most recent earlier place, then to the left."""
    for size in (4, 3, 2):
        if len(tokens) <= size:
            continue
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                while size < min(15, end) and tokens[end - size - 1] == tokens[-size - 1]:
                    size += 1
                return end, size
    return 0, 0


@given(text=small_texts, cut=st.integers(0, 60), asked=st.integers(1, 8))
def test_lookup_equals_a_search_of_the_whole_text(text: list[int], cut: int, asked: int) -> None:
    """However the text came in (prompt, then rounds), the draft is what a plain search finds."""
    drafter = NgramDrafter(8)
    drafter.prefill(KEY, text[:cut])
    for token in text[cut:]:
        drafter.observe(KEY, [token])
    (draft,) = drafter.propose([Ask(KEY, asked)])
    end, length = _reference_match(text)
    if length == 0:
        assert draft.token_ids == ()
    else:
        period = text[end:]
        assert draft.token_ids == tuple(period[i % len(period)] for i in range(asked))
        assert draft.bins == (length,) * asked
        assert MIN_MATCH_TOKENS <= length <= 15
    assert draft.asked_tokens == asked


def test_a_released_request_leaves_nothing_behind() -> None:
    """B15: a new request on the same key drafts from its own text only."""
    drafter = NgramDrafter(8)
    drafter.prefill(KEY, [1, 2, 3, 1, 2])
    drafter.release(KEY)
    drafter.prefill(KEY, [7, 8, 1, 2])
    (draft,) = drafter.propose([Ask(KEY, 4)])
    assert draft.token_ids == ()


def test_unknown_drafters_are_named() -> None:
    with pytest.raises(UnknownDrafter, match=r"unknown drafter 'ngrm': known are .*ngram"):
        load_drafter("ngrm", 8)
    assert {"ngram", "none"} <= set(known_drafters())
    assert load_drafter("none", 8) is None


@given(
    chains=st.lists(
        st.lists(st.floats(0.01, 0.99), max_size=6).map(lambda s: sorted(s, reverse=True)),
        max_size=8,
    ),
    rows=st.integers(0, 50),
)
def test_picks_are_prefixes_of_highest_total_score(chains: list[list[float]], rows: int) -> None:
    picked = pick_prefixes(chains, rows)
    everything = sorted((score for chain in chains for score in chain), reverse=True)
    assert all(0 <= count <= len(chain) for count, chain in zip(picked, chains, strict=True))
    assert sum(picked) == min(rows, len(everything))
    total = sum(sum(chain[:count]) for count, chain in zip(picked, chains, strict=True))
    assert total == pytest.approx(sum(everything[:rows]))


@given(data=st.data(), requests=st.integers(1, 6), width=st.integers(0, 5))
def test_sampler_match_accepts_the_agreeing_prefix(
    data: st.DataObject, requests: int, width: int
) -> None:
    def table(columns: int) -> list[list[int]]:
        row = st.lists(st.integers(0, 1), min_size=columns, max_size=columns)
        return data.draw(st.lists(row, min_size=requests, max_size=requests))

    samples, drafts = table(width + 1), table(width)
    lengths = [data.draw(st.integers(0, width)) for _ in range(requests)]
    drafted = torch.tensor(drafts, dtype=torch.int64).view(requests, width)
    rows = Table.many(SamplingParams(), requests).judged(
        certain(torch.tensor(samples), 3), drafted, torch.tensor(lengths)
    )
    verdict = SamplerMatch().verify(rows)
    for row in range(requests):
        accepted = 0
        while accepted < lengths[row] and samples[row][accepted] == drafts[row][accepted]:
            accepted += 1
        assert verdict.accepted[row] == accepted
        assert verdict.emitted[row, : accepted + 1].tolist() == samples[row][: accepted + 1]


def _drafting(class_label: str, bins: tuple[int, ...]) -> Request:
    request = Request.from_spec(RequestSpec(KEY, (3,), SamplingParams(), class_label=class_label))
    request.draft = Draft((5,) * len(bins), bins, len(bins))
    return request


def test_scores_come_from_the_map_fall_along_the_chain_and_carry_the_class_weight() -> None:
    survival = ((0.5, 0.9), (0.4, 0.95))
    plan = Plan(
        1,
        (1,),
        {},
        score_maps={("ngram", "vip/greedy"): ScoreMap(3, survival)},
        class_weights={"vip/greedy": 2.0},
    )
    mapped = chain_scores(_drafting("vip", (1, 1, 0)), plan, "ngram")
    assert mapped == [1.8, 1.8, 0.8]  # 0.95 may not rise above 0.9; the last position goes on
    unmapped = chain_scores(_drafting("", (1, 1)), plan, "ngram")
    assert unmapped == pytest.approx([0.6, 0.36])
