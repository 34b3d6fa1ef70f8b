"""How often coupled drafts are accepted: the formula that is reported, and the worker's own draws.

All noise is fixed by the seeds, so the statistical bounds hold always or never.
"""

import pytest
import torch

from benchmarks.acceptance_by_temperature import coupled_acceptance, rejection_acceptance
from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.speculate.verify import SamplerMatch
from tests.unit.worker.tensors.judging import Table

V, MANY = 6, 12_000


def laws(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(count, V, generator=torch.Generator().manual_seed(1)).double()
    other = torch.randn(count, V, generator=torch.Generator().manual_seed(2)).double()
    spread = torch.linspace(0, 2, count)[:, None].double()
    return logits.softmax(-1), (logits + spread * other).softmax(-1)


def test_the_formula_is_the_double_sum_and_keeps_its_bounds() -> None:
    p, q = laws(200)
    ratios = torch.maximum(p[:, None, :] / p[:, :, None], q[:, None, :] / q[:, :, None])
    coupled = coupled_acceptance(p, q)
    assert torch.allclose(coupled, (1 / ratios.sum(-1)).sum(-1), atol=1e-12)
    overlap = rejection_acceptance(p, q)
    assert bool((coupled <= overlap + 1e-12).all())
    assert bool((coupled >= overlap / (2 - overlap) - 1e-12).all())
    assert float(coupled[0]) == pytest.approx(1)


@pytest.mark.parametrize("pair", [60, 199])
def test_drafts_match_the_targets_samples_as_often_as_the_formula_says(pair: int) -> None:
    p, q = (law[pair : pair + 1] for law in laws(200))
    table = Table.many(P(temperature=1.0, seed=pair), MANY)
    chooser = SamplerMatch().chooser(table.next_rows())
    drafts = chooser.choose(q.log().float().expand(MANY, -1), 0).token_ids[:, None]
    rows = table.judged(p.log().float().expand(2, V).expand(MANY, 2, V), drafts)
    rate = float(SamplerMatch().verify(rows).accepted.double().mean())
    expected = float(coupled_acceptance(p, q))
    error = (expected * (1 - expected) / MANY) ** 0.5
    assert abs(rate - expected) < 4 * error
    assert float(rejection_acceptance(p, q)) - rate > 4 * error
