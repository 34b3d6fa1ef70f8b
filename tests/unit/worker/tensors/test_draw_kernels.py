"""The CPU's draws beside torch's: the same tokens, however they are shared out among threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.kernels.compiled import shared
from outrider_worker.kernels.exponential import exp_64
from outrider_worker.sampling.draw import draw_any, draw_filtered, draw_on_cpu
from tests.unit.worker.tensors.sampling_cases import columns

NEVER = float("-inf")


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn(logits: Tensor, **options: object) -> Tensor:
    """By the kernels; as by torch."""
    team, table = draw_on_cpu(), columns(len(logits), **options)
    assert team is not None
    if bool(table.filters.all()):
        tokens, reference = team.among_kept(logits, table), draw_filtered(logits, table)
    else:
        tokens, reference = team.among_all(logits, table), draw_any(logits, table)
    assert torch.equal(tokens, reference)
    return tokens


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4


@pytest.mark.parametrize("vocabulary", [1, 5, 256, 1027, 49_152])
@pytest.mark.parametrize("temperature", [1e-3, 0.8, 60.0])
def test_winners_among_all(vocabulary: int, temperature: float, threads: int) -> None:
    logits = random_logits(8, vocabulary, vocabulary)
    assert drawn(logits, temperature=temperature).max() < vocabulary


FILTERS = [
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_p": 1e-6},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 256, "top_p": 0.95},
    {"top_k": 100_000},
    {"min_p": 0.05},
    {"min_p": 1e-9, "top_p": 0.8},
    {"top_k": 20, "top_p": 0.5, "min_p": 0.01},
]


@pytest.mark.parametrize("vocabulary", [1, 300, 5003])
@pytest.mark.parametrize("temperature", [0.05, 0.8, 5.0])
@pytest.mark.parametrize("filters", FILTERS)
def test_winners_among_kept(vocabulary: int, temperature: float, filters: dict[str, float]) -> None:
    drawn(random_logits(8, vocabulary, vocabulary), temperature=temperature, **filters)


def test_rows_of_different_filters_and_threads(threads: int) -> None:
    top_k = torch.tensor([1, 0, 30, 0, 3000, 7])
    top_p = torch.tensor([1.0, 0.3, 0.9, 1.0, 0.99, 0.5])
    min_p = torch.tensor([0.0, 0.0, 0.2, 0.01, 0.0, 0.0])
    drawn(random_logits(6, 2000), temperature=1.2, top_k=top_k, top_p=top_p, min_p=min_p)


@given(
    level=st.lists(st.integers(-3, 3), min_size=1, max_size=400),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.31, 0.77, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=80, deadline=None)
def test_ties_go_to_the_lower_id(level: list[int], top_k: int, top_p: float, seed: int) -> None:
    """Many equal logits, zeros of both signs, tokens that are out."""
    logits = torch.tensor([[NEVER if x == -3 else x * 0.0 if x < 0 else float(x) for x in level]])
    logits[0, len(level) // 2] = 1.0
    drawn(logits.repeat(3, 1), top_k=top_k, top_p=top_p, seed=seed)


@given(seed=st.integers(-(2**63), 2**63 - 1), index=st.integers(0, 2**40), choice=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_noise_is_of_the_whole_place(seed: int, index: int, choice: int) -> None:
    places = torch.tensor([index, index + 1])
    drawn(torch.zeros(2, 999), seed=seed, index=places, choice=choice)
    drawn(torch.zeros(2, 999), seed=seed, index=places, choice=choice, top_k=500)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.999}])
def test_what_is_out_is_never_drawn(filters: dict[str, float], threads: int) -> None:
    logits = torch.full((500, 1000), NEVER)
    logits[:, [3, 500, 997]] = 0.0
    assert set(drawn(logits, **filters).tolist()) == {3, 500, 997}


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}])
def test_a_row_draws_alike_alone_and_among_others(filters: dict[str, float], threads: int) -> None:
    logits = random_logits(9, 2048)
    together = drawn(logits, **filters)
    for row in range(9):
        alone = drawn(logits[row : row + 1], index=torch.tensor([row]), **filters)
        assert alone.tolist() == [int(together[row])]


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}])
def test_rows_of_a_wider_table_are_read_where_they_lie(filters: dict[str, float]) -> None:
    drawn(random_logits(4, 3000)[:, 500:2500], **filters)


@shared
def _exp_of(x: np.ndarray, out: np.ndarray) -> None:
    for place in range(x.shape[0]):
        out[place] = exp_64(x[place])


def test_exp_in_double_is_right_to_the_last_places() -> None:
    x = np.concatenate([np.linspace(-60, 3, 400_001), [-700.0, 0.0, 700.0, -701.0, NEVER]])
    found = np.empty_like(x)
    _exp_of(x, found)
    exact = np.exp(x)
    assert (np.abs(found[:-2] - exact[:-2]) <= 2 * np.spacing(exact[:-2])).all()
    assert found[-2:].tolist() == [0, 0]
