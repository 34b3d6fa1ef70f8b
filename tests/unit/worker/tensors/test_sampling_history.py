"""Penalties and bad words against a slow model in plain Python."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_worker.engine.types import SamplingParams
from outrider_worker.sampling import adjust
from outrider_worker.sampling.adjust import BAN
from tests.unit.worker.tensors.sampling_cases import batch

V = 9
tokens = st.integers(0, V - 1)
# Eighths, so that float32 and Python's floats compute the same.
eighths = st.integers(-16, 16).map(lambda n: n / 8)
logits_of_a_row = st.lists(eighths, min_size=V, max_size=V)


def adjusted(
    logits: Sequence[float],
    params: SamplingParams,
    history: Sequence[int],
    prompt_tokens: int,
    sparse: bool = True,
) -> list[float]:
    one = batch([params], [history], [prompt_tokens])
    row: list[float] = adjust(
        torch.tensor([logits]), one.rows, one.table, one.stages, sparse=sparse
    )[0].tolist()
    return row


@given(
    logits=logits_of_a_row,
    prompt=st.lists(tokens, min_size=1, max_size=12),
    output=st.lists(tokens, max_size=12),
    repetition=st.sampled_from([0.5, 1.0, 2.0]),
    presence=eighths,
    frequency=eighths,
    sparse=st.booleans(),
)
@settings(max_examples=150)
def test_penalties_equal_their_formulas(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    sparse: bool,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    expected = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            logit = logit / repetition if logit > 0 else logit * repetition
        count = output.count(token)
        expected.append(logit - presence * (count > 0) - frequency * count)
    found = adjusted(logits, params, [*prompt, *output], len(prompt), sparse)
    assert found == expected


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, V, generator=generator)
    history = torch.randint(V, (1, 6), generator=generator)
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(history, logits.clone())
    ours = adjusted(
        logits[0].tolist(), SamplingParams(repetition_penalty=1.3), history[0].tolist(), 2
    )
    assert ours == theirs[0].tolist()


words = st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=6).map(tuple)


@given(
    bad_words=words,
    history=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    dense=st.booleans(),
)
@settings(max_examples=200)
def test_bad_words_ban_the_token_that_would_complete_them(
    bad_words: tuple[tuple[int, ...], ...], history: list[int], dense: bool
) -> None:
    banned = {
        word[-1]
        for word in bad_words
        if len(word) - 1 <= len(history)
        and history[len(history) - len(word) + 1 :] == list(word[:-1])
    }
    found = adjusted([0.0] * V, SamplingParams(bad_words=bad_words), history, 1, sparse=not dense)
    assert {token for token, logit in enumerate(found) if logit <= BAN} == banned
    assert all(logit == 0 for token, logit in enumerate(found) if token not in banned)


@pytest.mark.parametrize("sparse", [True, False])
def test_tokens_behind_the_known_ones_are_not_seen(sparse: bool) -> None:
    """Drafts that another row is of lie there, or what an earlier request left in the seat."""
    params = SamplingParams(presence_penalty=1.0, bad_words=((4, 5),))
    one = batch([params], [[3, 4]], [1], longest=8)
    one.rows.history[0, 2:] = 6
    row = adjust(torch.zeros(1, V), one.rows, one.table, one.stages, sparse=sparse)[0]
    assert row[6] == 0
    assert row[4] == -1
    assert row[5] == pytest.approx(BAN)
