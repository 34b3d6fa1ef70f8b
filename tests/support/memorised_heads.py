"""Heads that know a few texts by heart: both regimes of acceptance from one file, in seconds.

On the texts of `prompts` nearly every draft of such a head is accepted, elsewhere few are. They are
trained on the tiny target's greedy answers, by the product's own training where it has one.
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
from outrider_worker.train.answers import Answer, Question, Respondent
from outrider_worker.train.dataset import Text, TextInfo
from outrider_worker.train.export import export
from outrider_worker.train.heads import TrainedHead
from outrider_worker.train.kinds import KINDS, Kind
from outrider_worker.train.recipe import Recipe
from outrider_worker.train.target import TargetWeights
from outrider_worker.train.trainer import Trainer
from tests.support.block_layouts import DFLASH, DSPARK
from tests.support.block_training import KnownText, memorise
from tests.support.engines import tiny_model
from tests.support.head_checkpoints import write_head
from tests.support.tiny_block_drafters import TAPS
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.vanilla_training import VanillaHead

ANSWER_TOKENS = 40
MEMORISED = ("mtp-eagle", "mtp-vanilla", "eagle3", "dflash", "dspark")
DRAFTS = 3
"""What all of them draft, or more."""

_BLOCKS = {"dflash": DFLASH["z-lab, nested"], "dspark": DSPARK["DeepSpec, vanilla"]}
_VANILLA = "mtp-vanilla"
_EACH = 6
_RECIPE = Recipe(
    steps=80,
    texts_per_step=_EACH,
    rows_per_text=ANSWER_TOKENS,
    unrolled_steps=DRAFTS,
    copied_rate=1e-2,
    new_rate=1e-2,
    warm_up_steps=4,
)

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MemorisedHead:
    """A checkpoint for the target that `engines.tiny_model` is."""

    folder: Path
    prompts: Prompts
    """Whose greedy answers of up to `ANSWER_TOKENS` tokens it knows"""
    others: Prompts
    """Whose answers it does not know"""


@cache
def memorised_head(kind: str) -> MemorisedHead:
    """Of one of MEMORISED; made once per test process."""
    prompts = _prompts(5 * _EACH)
    known, others, strangers = prompts[:_EACH], prompts[_EACH : 2 * _EACH], prompts[2 * _EACH :]
    folder = Path(tempfile.mkdtemp(prefix=f"outrider-{kind}-"))
    torch.manual_seed(0)
    if kind in _BLOCKS:
        _memorise_block(kind, known, strangers, folder)
    else:
        _memorise_pairs(kind, known, folder)
    return MemorisedHead(folder, known, others)


def _prompts(count: int) -> Prompts:
    generator = np.random.default_rng(7)
    return tuple(tuple(generator.integers(3, VOCAB_SIZE, 10 + n).tolist()) for n in range(count))


def _memorise_block(kind: str, known: Prompts, strangers: Prompts, folder: Path) -> None:
    embedding = tiny_model().model.embed(torch.arange(VOCAB_SIZE)).clone()
    texts, others = ([*map(_known, _answers(each, [t + 1 for t in TAPS]), each)]
                     for each in (known, strangers))  # fmt: skip
    block = memorise(_BLOCKS[kind], embedding, texts, others)
    block.write(folder, {"embed_tokens.weight": embedding, "lm_head.weight": embedding})


def _memorise_pairs(kind: str, known: Prompts, folder: Path) -> None:
    target = tiny_model()
    found = KINDS["mtp-eagle" if kind == _VANILLA else kind]
    weights = TargetWeights.read(target)
    texts = [*map(_text, _answers(known, found.stored(target.config.layers)), known)]
    head = _head(kind, found, weights)
    # A sharpened teacher: it is the answer itself that is to be known, not how sure the target was.
    teacher = replace(weights, head=8 * weights.head)
    Trainer(head, teacher, found.columns(target.config), _RECIPE).train(texts, _RECIPE.steps)
    if kind == _VANILLA:
        write_head(folder, {}, {n: w.detach() for n, w in head.published().items()})
    else:
        export(head, found, weights, target.folder, folder)


def _head(kind: str, found: Kind, weights: TargetWeights) -> TrainedHead:
    kept_ids = torch.arange(VOCAB_SIZE)
    if kind == _VANILLA:
        return VanillaHead(weights, kept_ids, modules=DRAFTS)
    return found.make(weights, kept_ids)


def _answers(prompts: Prompts, boundaries: Sequence[int]) -> list[Answer]:
    """In the order asked."""
    respondent = Respondent(tiny_model(), boundaries, seats=len(prompts), context_tokens=128)
    asked = [Question(prompt, SamplingParams(max_tokens=ANSWER_TOKENS)) for prompt in prompts]
    return sorted(respondent.answer(asked), key=lambda answer: answer.number)


def _known(answer: Answer, prompt: tuple[int, ...]) -> KnownText:
    return KnownText(torch.tensor(answer.token_ids), answer.features.float(), len(prompt))


def _text(answer: Answer, prompt: tuple[int, ...]) -> Text:
    tokens = len(answer.token_ids)
    features = np.zeros((tokens, answer.features.shape[1]), np.float16)
    features[:-1] = answer.features.numpy()
    info = TextInfo(0, tokens, len(prompt), "memorised", False, 0.0, 0)
    return Text(info, np.array(answer.token_ids, np.int32), features)
