"""Acceptance made to order: the curve is met, the company does not matter, nobody gets it unasked.

All noise is fixed by the seeds below, so the statistical bounds hold always or never.
"""

import pytest
import torch

from outrider_worker.engine.types import SamplingParams
from outrider_worker.speculate.device import DraftBatch
from outrider_worker.speculate.drafter import UnknownDrafter, known_drafters, load_drafter
from outrider_worker.speculate.scores import score_bin
from outrider_worker.speculate.synthetic import SyntheticDrafter, SyntheticVerifier
from tests.unit.worker.tensors.judging import Table, certain

# A drafter on chat (drafters.md §13), with a sure first draft and a hopeless last one.
CURVE = (1.0, 0.8, 0.63, 0.36, 0.19, 0.13, 0.004, 0.0)
ROUNDS, SEATS = 500, 40
SAMPLES = ROUNDS * SEATS


def accepted(
    verifier: SyntheticVerifier, lengths: torch.Tensor, seats: torch.Tensor, known: torch.Tensor
) -> torch.Tensor:
    """Whatever the target thinks."""
    return torch.minimum(verifier.forced(seats, known), lengths)


@pytest.fixture(scope="module")
def forced() -> torch.Tensor:
    """[SAMPLES] accepted lengths of full drafts: every seat at each of many lengths of its text."""
    seats = torch.arange(SEATS).repeat(ROUNDS)
    known = torch.arange(ROUNDS).repeat_interleave(SEATS) + 17
    full = torch.full((SAMPLES,), len(CURVE))
    return accepted(SyntheticVerifier(CURVE, seed=5), full, seats, known)


def test_the_curve_is_met_at_every_position(forced: torch.Tensor) -> None:
    for place, survival in enumerate(CURVE):
        rate = float((forced > place).double().mean())
        assert abs(rate - survival) <= 4 * (survival * (1 - survival) / SAMPLES) ** 0.5


def test_the_mean_accepted_length_is_the_sum_of_the_curve(forced: torch.Tensor) -> None:
    standard_error = float(forced.double().std()) / SAMPLES**0.5
    assert abs(float(forced.double().mean()) - sum(CURVE)) <= 4 * standard_error


def test_neither_seats_nor_rounds_go_in_step(forced: torch.Tensor) -> None:
    """Lengths of neighbouring seats, and of neighbouring rounds, are uncorrelated."""
    table = forced.double().view(ROUNDS, SEATS)
    for one, other in ((table[:, 1:], table[:, :-1]), (table[1:], table[:-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) <= 4 / pair.shape[1] ** 0.5


def test_the_outcome_depends_neither_on_company_nor_on_the_draft_length(
    forced: torch.Tensor,
) -> None:
    verifier = SyntheticVerifier(CURVE, seed=5)
    rows = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1))[:64]
    seats, known = rows % SEATS, rows // SEATS + 17
    for lengths in (torch.full((64,), 3), torch.arange(64) % 9):
        some = accepted(verifier, lengths, seats, known)
        assert torch.equal(some, torch.minimum(forced[rows], lengths))
    alone = [accepted(verifier, torch.tensor([8]), seats[[i]], known[[i]]) for i in range(64)]
    assert torch.equal(torch.cat(alone), forced[rows])


def test_another_seed_gives_other_lengths(forced: torch.Tensor) -> None:
    seats, known = torch.arange(SEATS), torch.full((SEATS,), 17)
    full = torch.full((SEATS,), len(CURVE))
    other = accepted(SyntheticVerifier(CURVE, seed=6), full, seats, known)
    assert not torch.equal(other, forced[:SEATS])


def test_drafts_are_accepted_by_force_and_what_is_emitted_are_the_samples() -> None:
    """Drafts are never what was sampled here, and the table is wider than the curve."""
    samples, drafts = torch.ones(3, 6).long(), torch.zeros(3, 5).long()
    table = Table.many(SamplingParams(), 3)
    verdict = SyntheticVerifier([1.0, 1.0], seed=0).verify(
        table.judged(certain(samples, 4), drafts, torch.tensor([5, 1, 0]))
    )
    assert verdict.accepted.tolist() == [2, 1, 0]
    assert verdict.emitted.tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]


def _batch(device: str = "cpu") -> DraftBatch:
    history = torch.arange(30, device=device).view(3, 10)
    known, limit = torch.tensor([7, 2], device=device), torch.tensor([20, 3], device=device)
    return DraftBatch(torch.tensor([2, 0], device=device), history, known, limit)


def test_drafts_are_full_valid_and_as_deep_as_the_curve() -> None:
    drafts = SyntheticDrafter(CURVE[:4]).propose(_batch(), 6)
    assert drafts.lengths.tolist() == [4, 3]
    assert drafts.token_ids.tolist() == [[26, 25, 24, 23, 22, 21], [1, 0, 0, 0, 0, 0]]
    assert drafts.bins[0, :4].tolist() == [15, 15, 14, 13]
    assert SyntheticDrafter(CURVE[:4]).propose(_batch(), 2).lengths.tolist() == [2, 2]


def test_score_bins_are_calibrated(forced: torch.Tensor) -> None:
    """What is accepted at a position lies within the bounds of the bin its drafts carry."""
    bins = SyntheticDrafter(CURVE).propose(_batch(), len(CURVE)).bins[0].tolist()
    assert bins == sorted(bins, reverse=True)
    for place, each in enumerate(bins):
        rate = float((forced > place).double().mean())
        low = 2 ** ((each - 16) / 2) if each else 0.0
        assert low <= rate <= 2 ** ((each - 15) / 2)


def test_bins_halve_every_two() -> None:
    assert [score_bin(s) for s in (1.0, 0.71, 0.7, 0.5, 0.49, 0.25)] == [15, 15, 14, 14, 13, 12]
    assert [score_bin(s) for s in (2.0**-7.5, 2.0**-9, 0.0)] == [1, 0, 0]


def test_it_cannot_be_turned_on_by_name() -> None:
    assert SyntheticDrafter(CURVE).traits.name == "synthetic"
    assert "synthetic" not in known_drafters()
    with pytest.raises(UnknownDrafter):
        load_drafter("synthetic", 8)


@pytest.mark.parametrize("curve", [(), (0.5, 0.6), (1.1, 0.5), (0.5, -0.1), (float("nan"),)])
def test_what_is_no_survival_curve_is_refused(curve: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="survival curve"):
        SyntheticVerifier(curve, seed=0)


def test_nothing_is_read_by_the_host() -> None:
    """Tensors without data have nothing to branch on: shapes must follow from shapes."""
    drafts = SyntheticDrafter(CURVE, device="meta").propose(_batch("meta"), 4)
    forced = SyntheticVerifier(CURVE, seed=3, device="meta").forced(drafts.lengths, drafts.lengths)
    assert forced.device.type == "meta"
