"""Acceptance on paper: rounds are walked through as serving would have made them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from outrider_worker.engine.types import SamplingParams
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.train.answers import Question, Respondent
from outrider_worker.train.dataset import Text, TextInfo
from outrider_worker.train.evaluate import Acceptance, head_acceptance, ngram_acceptance
from outrider_worker.train.generate import text_of
from outrider_worker.train.heads import TrainedHead
from outrider_worker.train.kinds import KINDS
from outrider_worker.train.prompts import Prompt
from outrider_worker.train.target import TargetWeights
from tests.support.engines import Bench, request, static_plan, tiny_model
from tests.support.memorised_heads import ANSWER_TOKENS, MemorisedHead, memorised_head
from tests.support.tiny_models import VOCAB_SIZE

_DRAFTS = 3


def _text(token_ids: list[int], prompt_tokens: int) -> Text:
    info = TextInfo(0, len(token_ids), prompt_tokens, "list", True, 0.0, 0)
    features = np.zeros((len(token_ids), 96), np.float16)
    return Text(info, np.array(token_ids, np.int32), features)


def test_ngram_walks_the_rounds_that_serving_would_make() -> None:
    repeating = _text([5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6], prompt_tokens=5)
    found = ngram_acceptance([repeating], 3)
    # The anchor at place 5 repeats the prompt's first token, which alone is no n-gram yet.
    assert found.accepted.tolist() == [0, 3, 3, 2]
    fresh = ngram_acceptance([_text(list(range(3, 40)), prompt_tokens=5)], 3)
    assert fresh.rounds == 37 - 6
    assert fresh.tokens_per_round == 1.0


def test_acceptance_by_position_is_survival() -> None:
    found = Acceptance(np.array([0, 3, 1, 0]), draft_tokens=3)
    assert found.by_position == (0.5, 0.25, 0.25)
    assert found.tokens_per_round == 2.0


def _trainable(memorised: MemorisedHead, kind: str) -> TrainedHead:
    """The head of a checkpoint, as it was in training."""
    head = KINDS[kind].make(TargetWeights.read(tiny_model()), torch.arange(VOCAB_SIZE))
    stored = load_file(memorised.folder / "model.safetensors")
    for name, weight in head.published().items():
        weight.copy_(stored[name])
    return head


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_acceptance_on_paper_is_what_serving_finds(temperature: float) -> None:
    """Round by round, but for the last, where the answer's length cuts the draft."""
    kind, memorised, model = KINDS["mtp-eagle"], memorised_head("mtp-eagle"), tiny_model()
    prompt = memorised.prompts[3]
    params = SamplingParams(temperature=temperature, seed=11, max_tokens=ANSWER_TOKENS)
    writer = Respondent(model, kind.stored(model.config.layers), seats=1, context_tokens=128)
    (answer,) = writer.answer([Question(prompt, params)])
    text = text_of(answer, Prompt("list", "", True), len(prompt), params)
    head = _trainable(memorised, kind.name)
    on_paper = head_acceptance(head, [text], kind.columns(model.config), _DRAFTS).accepted.tolist()

    drafter = open_drafter(memorised.folder, model, max_draft_tokens=_DRAFTS)
    bench = Bench(
        plan=static_plan(drafter.traits.name, _DRAFTS),
        device_drafter=drafter,
        model=model,
        eos_token_ids=model.config.eos_ids,
    )
    (served,) = bench.run(request(prompt, ANSWER_TOKENS, temperature=temperature, seed=11))
    assert served.token_ids == list(answer.token_ids[len(prompt) :])
    found = [record.accepted_tokens for record in bench.records if record.requests]
    assert sum(on_paper) > 3
    assert found[: len(on_paper) - 1] == on_paper[:-1]
