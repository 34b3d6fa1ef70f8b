"""Drafts coupled to the target's noise."""

import pytest
import torch

from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.speculate.choosers import SamplerMatchChooser
from outrider_worker.speculate.verify import SamplerMatch
from tests.unit.worker.tensors.judging import Table

V, K = 24, 4
PARAMS = {
    "greedy": P(),
    "hot": P(temperature=1.5, seed=3),
    "filtered": P(temperature=0.9, top_k=6, top_p=0.9, seed=4),
    "penalised": P(temperature=1.0, repetition_penalty=3.0, frequency_penalty=1.0, seed=5),
    "early end": P(temperature=1.0, min_tokens=3, seed=6),
}


def test_a_drafter_with_the_targets_laws_is_always_right() -> None:
    """Through a whole block, where penalties see the drafts before and noise moves on."""
    table = Table.of(list(PARAMS.values()), [[5, 6, 7]] * len(PARAMS))
    logits = torch.randn(len(PARAMS), K + 1, V, generator=torch.Generator().manual_seed(1)) * 2
    chooser = SamplerMatch().chooser(table.next_rows())
    chosen = [chooser.choose(logits[:, step], step) for step in range(K)]
    drafts = torch.stack([each.token_ids for each in chosen], dim=1)
    verdict = SamplerMatch().verify(table.judged(logits, drafts))
    assert verdict.accepted.tolist() == [K] * len(PARAMS)
    assert len({tuple(line) for line in drafts.tolist()}) > 1


def test_a_step_draws_with_the_noise_of_its_own_index() -> None:
    """The same logits at every step give other tokens, and the same at the same index."""
    table = Table.of([P(temperature=1.0, seed=9)], [[2, 3]])
    logits = torch.zeros(1, V)
    chooser = SamplerMatchChooser(table.next_rows())
    first = [int(chooser.choose(logits, step).token_ids) for step in range(8)]
    assert len(set(first)) > 3
    later = SamplerMatchChooser(table.next_rows().ahead(2))
    assert [int(later.choose(logits, step).token_ids) for step in range(6)] == first[2:]


def test_confidence_is_the_probability_of_the_token_drawn() -> None:
    table = Table.of([P(), P(temperature=0.5, seed=1, top_k=1)], [[2], [2]])
    logits = torch.tensor([[0.0, 1.0, 3.0]]).expand(2, -1)
    chosen = SamplerMatchChooser(table.next_rows()).choose(logits, 0)
    assert chosen.token_ids.tolist() == [2, 2]
    assert chosen.confidence.tolist() == pytest.approx(
        [float(logits[0].softmax(-1)[2]), float((logits[0] / 0.5).softmax(-1)[2])]
    )


def test_tokens_that_cannot_be_drafted_never_are() -> None:
    table = Table.many(P(temperature=2.0), 400)
    logits = torch.zeros(400, V).index_fill(1, torch.arange(5, V), float("-inf"))
    assert int(SamplerMatchChooser(table.next_rows()).choose(logits, 0).token_ids.max()) == 4
