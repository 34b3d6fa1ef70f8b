"""Logprobs: the law's own values, the likeliest tokens in order, each row by itself."""

import pytest
import torch

from outrider_worker.sampling import logprobs_of
from outrider_worker.sampling.rank import ranked


def test_values_are_the_log_softmax_of_the_row() -> None:
    """A24: at temperature 1 no token has probability 1, and the best 20 have no more than 1."""
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1)) * 4
    tokens = torch.tensor([0, 4999, 17, 300, 2, 1])
    found = logprobs_of(logits, tokens, 20)
    law = logits.double().log_softmax(-1)
    assert torch.equal(found.logprob, law.gather(1, tokens[:, None])[:, 0].float())
    assert torch.equal(found.top_logprobs, law.gather(1, found.top_ids).float())
    assert torch.equal(found.top_logprobs, law.topk(20).values.float())
    assert (found.top_logprobs.double().exp().sum(-1) <= 1).all()
    assert (found.logprob < 0).all()


def test_ties_go_to_the_lower_id_also_at_the_edge() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, [4000, 100]] = 1.0
    found = logprobs_of(logits, torch.tensor([9]), 5)
    assert found.top_ids.tolist() == [[100, 4000, 0, 1, 2]]


@pytest.mark.parametrize(("top", "width"), [(0, 0), (20, 8)])
def test_no_more_alternatives_than_there_are_tokens(top: int, width: int) -> None:
    found = logprobs_of(torch.zeros(2, 8), torch.tensor([1, 2]), top)
    assert found.top_ids.shape == found.top_logprobs.shape == (2, width)
    assert found.logprob.tolist() == pytest.approx([-2.0794415] * 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone(threads: int) -> None:
    before = torch.get_num_threads()
    logits = torch.randn(5, 49_152, generator=torch.Generator().manual_seed(2)) * 4
    tokens = torch.arange(5)
    torch.set_num_threads(threads)
    try:
        together = logprobs_of(logits, tokens, 20)
        for row in range(5):
            alone = logprobs_of(logits[row : row + 1], tokens[row : row + 1], 20)
            assert torch.equal(alone.logprob[0], together.logprob[row])
            assert torch.equal(alone.top_ids[0], together.top_ids[row])
            assert torch.equal(alone.top_logprobs[0], together.top_logprobs[row])
    finally:
        torch.set_num_threads(before)


def test_ranks_are_by_logit_then_id_whatever_the_signs() -> None:
    values = [-0.0, 0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, float("inf"), float("-inf"), -2.0, 2.0]
    logits = torch.tensor([values, values[::-1]])
    for row, order in zip(logits, ranked(logits, len(values)), strict=True):
        expected = sorted(range(len(values)), key=lambda at: (-float(row[at]), at))
        assert order.tolist() == expected
    assert torch.equal(ranked(logits, 4), ranked(logits, len(values))[:, :4])
