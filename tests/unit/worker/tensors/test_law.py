"""The law of a row against a plain reference, and against what is drawn."""

from math import exp

import pytest
import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.sampling import Stages, law
from tests.unit.worker.tensors.judging import Table, chi_square
from tests.unit.worker.tensors.sampling_cases import columns

V = 40
ALL = Stages.DRAW | Stages.FILTER
FILTERS: dict[str, dict[str, float]] = {
    "free": {},
    "hot": {"temperature": 1.7},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.2},
    "all": {"temperature": 0.6, "top_k": 12, "top_p": 0.9, "min_p": 0.01},
}


def expected_law(logits: Tensor, options: dict[str, float]) -> Tensor:
    """Token by token, in plain Python: [V] → [V]."""
    p = (logits.double() / options.get("temperature", 1.0)).softmax(-1).tolist()
    order = sorted(range(len(p)), key=lambda token: (-float(logits[token]), token))
    kept = [t for t in order if p[t] >= options.get("min_p", 0.0) * p[order[0]]]
    kept = kept[: int(options.get("top_k", len(p)))]
    total, sofar, nucleus = sum(p[t] for t in kept), 0.0, list[int]()
    for token in kept:
        if not nucleus or sofar < options.get("top_p", 1.0) * total:
            nucleus.append(token)
        sofar += p[token]
    mass = sum(p[t] for t in nucleus)
    return torch.tensor([p[t] / mass if t in nucleus else 0.0 for t in range(len(p))])


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", FILTERS)
def test_it_is_what_temperature_and_filters_make_of_the_logits(name: str, sparse: bool) -> None:
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(1)) * 2
    found = law(logits, columns(6, **FILTERS[name]), ALL, sparse)
    for row in range(6):
        assert torch.allclose(
            found[row].float(), expected_law(logits[row], FILTERS[name]), atol=1e-6
        )
    assert torch.allclose(found.sum(-1), torch.ones(6).double(), atol=1e-14)


def test_more_survivors_than_candidates_change_nothing() -> None:
    """A flat law over 3,000 tokens, of which top-p keeps more than are looked at first."""
    logits = torch.randn(2, 3000, generator=torch.Generator().manual_seed(2)) * 0.1
    some = columns(2, top_p=0.9)
    few_first, all_sorted = (law(logits, some, ALL, sparse) for sparse in (True, False))
    assert torch.equal(few_first, all_sorted)
    assert int((few_first > 0).sum(-1).min()) > 2000


def test_a_row_does_not_depend_on_its_company() -> None:
    logits = torch.randn(9, V, generator=torch.Generator().manual_seed(3))
    mixed = columns(9, temperature=torch.arange(9) % 3 * 0.7, top_k=torch.arange(9) % 2 * 4)
    together = law(logits, mixed, ALL)
    for row in range(9):
        alone = law(logits[row : row + 1], mixed.take(slice(row, row + 1)), ALL)
        assert torch.equal(alone[0], together[row])
    greedy = together[mixed.temperature == 0]
    assert torch.equal(greedy.argmax(-1), logits[mixed.temperature == 0].argmax(-1))
    assert bool((greedy.amax(-1) == 1).all())


@pytest.mark.parametrize(
    "options", [{"temperature": 1.3}, {"temperature": 0.8, "top_k": 4, "top_p": 0.9}]
)
def test_it_is_the_law_of_what_is_drawn(options: dict[str, float]) -> None:
    table, draws = Table.many(P(seed=7, **options), 30_000), 30_000  # type: ignore[arg-type]
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(4)).expand(draws, -1)
    rows = table.next_rows()
    counts = torch.bincount(rows.sample(logits), minlength=8).double()
    assert abs(chi_square(counts, rows.law(logits)[0])) < 4


def test_penalties_biases_bans_and_masks_are_in_it() -> None:
    params = P(temperature=1.0, repetition_penalty=2.0, logit_bias=((3, -100.0),), min_tokens=2)
    table = Table.of([params], [[5, 5]])
    logits = torch.ones(1, 1, 8)
    mask = torch.tensor([[[0b01111111]]], dtype=torch.int32)
    rows = table.judged(logits, torch.zeros(1, 0).long(), mask=mask)
    found = rows.law(torch.tensor([0]))[0]
    assert found[[1, 7]].tolist() == [0.0, 0.0]  # an end before min_tokens, a token off the mask
    assert float(found[3]) < 1e-40
    assert float(found[5]) == pytest.approx(float(found[0]) * exp(-0.5))
