"""Heads that know a few texts by heart: both regimes of acceptance from one file, in seconds.

On the texts of `prompts` nearly every draft of such a head is accepted, elsewhere few are. They are
trained by the product's own training, on the tiny target's greedy answers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from outrider_worker.engine.types import SamplingParams
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.train.answers import Answer, Question, Respondent
from outrider_worker.train.dataset import Text, TextInfo
from outrider_worker.train.export import export
from outrider_worker.train.kinds import KINDS
from outrider_worker.train.recipe import Recipe
from outrider_worker.train.target import TargetWeights
from outrider_worker.train.trainer import Trainer
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama

ANSWER_TOKENS = 40
_RECIPE = Recipe(
    steps=80,
    texts_per_step=6,
    rows_per_text=ANSWER_TOKENS,
    copied_rate=1e-2,
    new_rate=1e-2,
)


@dataclass(frozen=True)
class MemorisedHead:
    """A checkpoint for the target that `tiny_models.shared_tiny_llama` is."""

    folder: Path
    prompts: tuple[tuple[int, ...], ...]
    """Whose greedy answers of up to `ANSWER_TOKENS` tokens it knows"""
    others: tuple[tuple[int, ...], ...]
    """Whose answers it does not know"""


@cache
def memorised_head(kind: str) -> MemorisedHead:
    """Of "mtp-eagle" or "eagle3"; made once per test process."""
    target, found = load_model(shared_tiny_llama()), KINDS[kind]
    weights = TargetWeights.read(target)
    prompts = _prompts(12)
    texts = _texts(target, found.stored(target.config.layers), prompts[:6])
    torch.manual_seed(0)
    head = found.make(weights, torch.arange(VOCAB_SIZE))
    # A sharpened teacher: it is the answer itself that is to be known, not how sure the target was.
    teacher = replace(weights, head=8 * weights.head)
    Trainer(head, teacher, found.columns(target.config), _RECIPE).train(texts, _RECIPE.steps)
    folder = Path(tempfile.mkdtemp(prefix=f"outrider-{kind}-"))
    export(head, found, weights, target.folder, folder)
    return MemorisedHead(folder, prompts[:6], prompts[6:])


def _prompts(count: int) -> tuple[tuple[int, ...], ...]:
    generator = np.random.default_rng(7)
    return tuple(tuple(generator.integers(3, VOCAB_SIZE, 10 + n).tolist()) for n in range(count))


def _texts(
    target: LoadedModel, boundaries: Sequence[int], prompts: Sequence[tuple[int, ...]]
) -> list[Text]:
    respondent = Respondent(target, boundaries, seats=len(prompts), context_tokens=128)
    asked = [Question(prompt, SamplingParams(max_tokens=ANSWER_TOKENS)) for prompt in prompts]
    return [_text(each, len(prompts[each.number])) for each in respondent.answer(asked)]


def _text(answer: Answer, prompt_tokens: int) -> Text:
    tokens = len(answer.token_ids)
    features = np.zeros((tokens, answer.features.shape[1]), np.float16)
    features[:-1] = answer.features.numpy()
    info = TextInfo(0, tokens, prompt_tokens, "memorised", False, 0.0)
    return Text(info, np.array(answer.token_ids, np.int32), features)
