"""Sampling: the law, the filters, and that a row's draw is its own business."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.sampling import SamplingTable, sample

VOCABULARY = 1500
"""Above the number of candidates looked at first, so that both paths run."""


def table(rows: int, **columns: Any) -> SamplingTable:
    """Equal rows but for `index`, which counts up; columns replace the defaults."""
    index = torch.arange(rows)

    def full(name: str, default: float, dtype: torch.dtype) -> Tensor:
        value = columns.get(name, default)
        return value if isinstance(value, Tensor) else torch.full((rows,), value, dtype=dtype)

    return SamplingTable(
        temperature=full("temperature", 1.0, torch.float32),
        top_k=full("top_k", 0, torch.int64),
        top_p=full("top_p", 1.0, torch.float32),
        seed=full("seed", 42, torch.int64),
        choice=full("choice", 0, torch.int64),
        index=columns.get("index", index),
    )


def filtered_law(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """[V] the distribution that the chain defines, by the book: sorted, cut, renormalised."""
    order = logits.argsort(descending=True, stable=True)
    p = (logits.double() / temperature).softmax(0)[order]
    if top_k:
        p[top_k:] = 0
    p /= p.sum()
    p[(p.cumsum(0) - p) >= top_p] = 0
    law = torch.zeros_like(p)
    law[order] = p / p.sum()
    return law


CHAINS = [
    (1.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.0, 5, 1.0),
    (1.3, 0, 0.8),
    (0.9, 12, 0.9),
    (1.0, 1200, 0.999),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CHAINS)
def test_draws_follow_the_filtered_law(temperature: float, top_k: int, top_p: float) -> None:
    draws = 2000
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    law = filtered_law(logits, temperature, top_k, top_p)
    columns = table(draws, temperature=temperature, top_k=top_k, top_p=top_p)
    tokens = sample(logits.expand(draws, -1), columns)
    assert law[tokens].min() > 0, "a token that the filters take out was drawn"
    common = law * draws >= 8
    observed = torch.bincount(tokens, minlength=VOCABULARY).double()
    pairs = [
        (float(o), float(e)) for o, e in zip(observed[common], law[common] * draws, strict=True)
    ]
    rest = float(law[~common].sum()) * draws
    if rest > 1:
        pairs.append((float(observed[~common].sum()), rest))
    chi_square = sum((o - e) ** 2 / e for o, e in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_a_tail_of_little_mass_is_hardly_ever_drawn() -> None:
    """150,000 tokens that share a mass of 1e-6: coarse noise would draw them about once in 100."""
    draws, vocabulary = 240, 150_000
    logits = torch.full((vocabulary,), float(torch.tensor(1e-6 / vocabulary).log()))
    logits[77] = 0.0
    for start in range(0, draws, 20):
        columns = table(20, index=torch.arange(start, start + 20))
        assert (sample(logits.expand(20, -1), columns) == 77).all()


def test_tokens_of_no_probability_are_never_drawn() -> None:
    logits = torch.full((300, 50), float("-inf"))
    logits[:, 7], logits[:, 11] = -200.0, -200.5
    for columns in (table(300), table(300, top_p=0.9999), table(300, top_k=30)):
        assert set(sample(logits, columns).tolist()) == {7, 11}


def test_greedy_takes_the_lowest_id_of_the_highest() -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[1, [900, 30, 31]] = 5.0
    logits[2, VOCABULARY - 1] = 1.0
    assert sample(logits, table(3, temperature=0.0)).tolist() == [0, 30, VOCABULARY - 1]


def test_ties_are_cut_at_the_lower_ids() -> None:
    logits = torch.zeros(200, VOCABULARY)
    logits[:, 1400] = 1.0
    drawn = set(sample(logits, table(200, top_k=3)).tolist())
    assert drawn == {1400, 0, 1}


@pytest.mark.parametrize("columns", [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-5}])
def test_the_narrowest_filters_are_greedy(columns: dict[str, float]) -> None:
    logits = torch.randn(50, VOCABULARY, generator=torch.Generator().manual_seed(2))
    assert torch.equal(sample(logits, table(50, **columns)), logits.argmax(-1))


def test_seed_choice_and_index_each_matter() -> None:
    logits = torch.zeros(64, VOCABULARY)
    plain = sample(logits, table(64))
    others = (
        table(64, seed=43),
        table(64, seed=42 + (1 << 40)),
        table(64, choice=1),
        table(64, index=torch.arange(64) + 64),
    )
    assert torch.equal(plain, sample(logits, table(64)))
    for other in others:
        assert (sample(logits, other) == plain).float().mean() < 0.1


def mixed_table(rows: int, generator: torch.Generator) -> SamplingTable:
    def pick(options: list[float], dtype: torch.dtype) -> Tensor:
        places = torch.randint(len(options), (rows,), generator=generator)
        return torch.tensor(options, dtype=dtype)[places]

    return SamplingTable(
        temperature=pick([0.0, 0.0, 0.6, 1.0, 1.7], torch.float32),
        top_k=pick([0, 0, 1, 40, 1400], torch.int64),
        top_p=pick([1.0, 1.0, 0.5, 0.95, 0.9999], torch.float32),
        seed=torch.randint(-(1 << 62), 1 << 62, (rows,), generator=generator),
        choice=pick([0, 1], torch.int64),
        index=torch.randint(1000, (rows,), generator=generator),
    )


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=30)
def test_a_row_draws_the_same_alone_and_among_any_others(seed: int, rows: int) -> None:
    """Greedy rows beside seeded ones, filtered beside free ones, in any order."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, VOCABULARY, generator=generator) * 2
    columns = mixed_table(rows, generator)
    together = sample(logits, columns)
    order = torch.randperm(rows, generator=generator)
    assert torch.equal(sample(logits[order], columns.take(order)), together[order])
    for row in range(rows):
        alone = sample(logits[row : row + 1], columns.take(torch.tensor([row])))
        assert alone.item() == together[row], dataclasses.asdict(columns.take(torch.tensor([row])))
    greedy = columns.temperature == 0
    assert torch.equal(together[greedy], logits.argmax(-1)[greedy])


@pytest.mark.parametrize("threads", [1, 2])
def test_large_vocabularies_draw_the_same_alone_with_several_threads(threads: int) -> None:
    before = torch.get_num_threads()
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 49_152, generator=generator) * 4
    columns = table(
        6,
        top_p=torch.tensor([1.0, 0.9, 0.99, 1.0, 0.5, 1.0]),
        top_k=torch.tensor([0, 0, 50, 50, 0, 0]),
    )
    torch.set_num_threads(threads)
    try:
        together = sample(logits, columns)
        alone = [int(sample(logits[r : r + 1], columns.take(torch.tensor([r])))) for r in range(6)]
    finally:
        torch.set_num_threads(before)
    assert together.tolist() == alone
