"""A tiny target, prompts for it and their answers: training end to end in seconds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from outrider_worker.kv import KvPool
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.rows import lay_out
from outrider_worker.seats import SeatState
from outrider_worker.train.answers import Respondent
from outrider_worker.train.generate import AnswerPlan
from outrider_worker.train.kinds import KINDS, Kind
from outrider_worker.train.prompts import Prompt
from outrider_worker.train.recipe import Recipe
from outrider_worker.train.run import Training
from tests.support.tiny_models import make_tiny_llama

PLAN = AnswerPlan(answer_tokens=24, prompts_per_shard=8, context_tokens=64)
RECIPE = Recipe(
    steps=30,
    texts_per_step=8,
    rows_per_text=16,
    draft_vocab=200,
    copied_rate=1e-2,
    new_rate=1e-2,
    warm_up_steps=2,
    evaluate_every=15,
)


@cache
def tiny_target() -> LoadedModel:
    """Three layers, so that the taps of all kinds lie apart."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-train-"))
    return load_model(make_tiny_llama(folder, num_hidden_layers=3))


class TinyChat:
    """The tiny tokenizer's bytes behind its three special tokens, and nothing around a message."""

    def encode(self, message: str) -> list[int]:
        return encode(message)

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token - 3 for token in token_ids).decode()


def encode(text: str) -> list[int]:
    """See TinyChat."""
    return [3 + byte for byte in text.encode()]


def tiny_prompts(count: int) -> list[Prompt]:
    """One in four is held out, half of these as of a family that is never trained on.

    What a random model says teaches nothing about what else it says: so these are held out in name
    alone, and are prompts that are trained on too.
    """
    return [
        Prompt("story" if n % 8 == 6 else "list", f"say {n % 6}", held_out=n % 4 == 2)
        for n in range(count)
    ]


def respondent(kind: Kind, seats: int = 4) -> Respondent:
    """Of the tiny target."""
    target = tiny_target()
    boundaries = kind.stored(target.config.layers)
    return Respondent(target, boundaries, seats, PLAN.context_tokens)


def tiny_training(
    folder: Path, kind: str, prompts: Sequence[Prompt] | None = None, recipe: Recipe = RECIPE
) -> Training:
    """A whole run, of a few seconds."""
    chosen = tiny_prompts(24) if prompts is None else prompts
    return Training(KINDS[kind], folder, chosen, PLAN, recipe, seats=8)


def forward(text: Sequence[int], boundaries: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Hidden states [T, d] and features [T, F] of the tiny target over a whole text."""
    target, tokens = tiny_target(), len(text)
    state = SeatState.allocate(1, PLAN.context_tokens, 0)
    state.page_table[0, 0] = 1
    state.put(0, torch.tensor(text), tokens, 0)
    zero = torch.tensor([0])
    rows = lay_out(state, zero, zero, torch.tensor([tokens]), tokens).rows
    pool = KvPool.of_pages(target.config, 2, torch.float32)
    return target.model.forward_with_features(rows, pool, boundaries)
