"""The draw: the law, the filters, and that a row's draw is its own business."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.sampling import DrawColumns, Stages, draw
from tests.unit.worker.tensors.sampling_cases import columns

VOCABULARY = 1500
"""Above the number of candidates looked at first, so that both ways are gone."""
ALL = Stages.DRAW | Stages.FILTER


def tokens_of(logits: Tensor, table: DrawColumns, sparse: bool = True) -> Tensor:
    return draw(logits, table, ALL, sparse)


def filtered_law(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> Tensor:
    """[V] the distribution that the chain defines, by the book: sorted, cut, renormalised."""
    order = logits.argsort(descending=True, stable=True)
    p = (logits.double() / temperature).softmax(0)[order]
    p[p < min_p * p[0]] = 0
    if top_k:
        p[top_k:] = 0
    p /= p.sum()
    p[(p.cumsum(0) - p) >= top_p] = 0
    law = torch.zeros_like(p)
    law[order] = p / p.sum()
    return law


def assert_follows(tokens: Tensor, law: Tensor) -> None:
    """Chi-square, rare tokens taken together, at five standard deviations."""
    draws = len(tokens)
    assert law[tokens].min() > 0, "a token that the filters take out was drawn"
    common = law * draws >= 8
    observed = torch.bincount(tokens, minlength=len(law)).double()
    pairs = [
        (float(o), float(e)) for o, e in zip(observed[common], law[common] * draws, strict=True)
    ]
    rest = float(law[~common].sum()) * draws
    if rest > 1:
        pairs.append((float(observed[~common].sum()), rest))
    chi_square = sum((o - e) ** 2 / e for o, e in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5 + 5


FILTERS = [(0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.15), (6, 0.9, 0.02)]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), FILTERS)
def test_eight_tokens_are_drawn_by_their_law(
    temperature: float, top_k: int, top_p: float, min_p: float, sparse: bool
) -> None:
    """A15: what is emitted follows the filtered law of the target."""
    draws = 200_000 if sparse else 20_000
    logits = torch.tensor([1.3, -0.4, 0.2, 2.1, -1.7, 0.9, 1.3, -3.0])
    table = columns(draws, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    tokens = tokens_of(logits.expand(draws, -1), table, sparse)
    assert_follows(tokens, filtered_law(logits, temperature, top_k, top_p, min_p))


CHAINS = [
    (1.0, 0, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (0.9, 12, 0.9, 0.0),
    (1.0, 1200, 0.999, 0.0),
    (1.5, 0, 0.95, 0.02),
    (9.0, 0, 1.0, 0.1),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), CHAINS)
def test_draws_follow_the_filtered_law(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """The last two keep more by min-p than are looked at first, so the rest is sorted."""
    draws = 1500
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    table = columns(draws, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    tokens = tokens_of(logits.expand(draws, -1), table)
    assert_follows(tokens, filtered_law(logits, temperature, top_k, top_p, min_p))


def test_a_tail_of_little_mass_is_hardly_ever_drawn() -> None:
    """150,000 tokens that share a mass of 1e-6: coarse noise would draw them about once in 100."""
    draws, vocabulary = 240, 150_000
    logits = torch.full((vocabulary,), float(torch.tensor(1e-6 / vocabulary).log()))
    logits[77] = 0.0
    for start in range(0, draws, 20):
        table = columns(20, index=torch.arange(start, start + 20))
        assert (tokens_of(logits.expand(20, -1), table) == 77).all()


def test_tokens_of_no_probability_are_never_drawn() -> None:
    logits = torch.full((300, 50), float("-inf"))
    logits[:, 7], logits[:, 11] = -200.0, -200.5
    for table in (columns(300), columns(300, top_p=0.9999), columns(300, top_k=30)):
        assert set(tokens_of(logits, table).tolist()) == {7, 11}


def test_greedy_takes_the_lowest_id_of_the_highest() -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[1, [900, 30, 31]] = 5.0
    logits[2, VOCABULARY - 1] = 1.0
    assert tokens_of(logits, columns(3, temperature=0.0)).tolist() == [0, 30, VOCABULARY - 1]


def test_ties_are_cut_at_the_lower_ids() -> None:
    logits = torch.zeros(200, VOCABULARY)
    logits[:, 1400] = 1.0
    seen = set(tokens_of(logits, columns(200, top_k=3)).tolist())
    assert seen == {1400, 0, 1}


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(
    "narrow", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-40}]
)
def test_the_narrowest_filters_are_greedy(narrow: dict[str, float], sparse: bool) -> None:
    logits = torch.randn(50, VOCABULARY, generator=torch.Generator().manual_seed(2))
    tokens = tokens_of(logits, columns(50, **narrow), sparse)
    assert torch.equal(tokens, logits.argmax(-1))


def test_seed_choice_and_index_each_matter() -> None:
    logits = torch.zeros(64, VOCABULARY)
    plain = tokens_of(logits, columns(64))
    others = (
        columns(64, seed=43),
        columns(64, seed=42 + (1 << 40)),
        columns(64, choice=1),
        columns(64, index=torch.arange(64) + 64),
    )
    assert torch.equal(plain, tokens_of(logits, columns(64)))
    for other in others:
        assert (tokens_of(logits, other) == plain).float().mean() < 0.1


def mixed_columns(rows: int, generator: torch.Generator) -> DrawColumns:
    def pick(options: list[float], dtype: torch.dtype) -> Tensor:
        places = torch.randint(len(options), (rows,), generator=generator)
        return torch.tensor(options, dtype=dtype)[places]

    return DrawColumns(
        temperature=pick([0.0, 0.0, 0.6, 1.0, 1.7, 9.0], torch.float32),
        top_k=pick([0, 0, 1, 40, 1400], torch.int64),
        top_p=pick([1.0, 1.0, 0.5, 0.95, 0.9999], torch.float32),
        min_p=pick([0.0, 0.0, 0.05, 0.5, 1.0], torch.float32),
        seed=torch.randint(-(1 << 62), 1 << 62, (rows,), generator=generator),
        choice=pick([0, 1], torch.int64),
        index=torch.randint(1000, (rows,), generator=generator),
    )


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=25)
def test_a_row_draws_the_same_alone_and_among_any_others(seed: int, rows: int) -> None:
    """Greedy rows beside seeded ones, filtered beside free ones, in any order, in both ways."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, VOCABULARY, generator=generator) * 2
    table = mixed_columns(rows, generator)
    together = tokens_of(logits, table)
    assert torch.equal(tokens_of(logits, table, sparse=False), together)
    order = torch.randperm(rows, generator=generator)
    assert torch.equal(tokens_of(logits[order], table.take(order)), together[order])
    for row in range(rows):
        alone = tokens_of(logits[row : row + 1], table.take(slice(row, row + 1)))
        assert alone.item() == together[row], dataclasses.asdict(table.take(slice(row, row + 1)))
    greedy = table.temperature == 0
    assert torch.equal(together[greedy], logits.argmax(-1)[greedy])


@pytest.mark.parametrize("threads", [1, 2])
def test_large_vocabularies_draw_the_same_alone_with_several_threads(threads: int) -> None:
    before = torch.get_num_threads()
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 49_152, generator=generator) * 4
    table = columns(
        6,
        top_p=torch.tensor([1.0, 0.9, 0.99, 1.0, 0.5, 1.0]),
        top_k=torch.tensor([0, 0, 50, 50, 0, 0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.02, 0.0, 0.01]),
    )
    torch.set_num_threads(threads)
    try:
        together = tokens_of(logits, table)
        alone = [int(tokens_of(logits[r : r + 1], table.take(slice(r, r + 1)))) for r in range(6)]
    finally:
        torch.set_num_threads(before)
    assert together.tolist() == alone
