"""Small neural drafters of every family, opened from files as they are published."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.device import StatefulDrafter
from outrider_worker.speculate.draft_model import open_draft_model
from tests.contract.drafters.subjects import K
from tests.support.block_layouts import DFLASH, DSPARK
from tests.support.head_checkpoints import (
    DRAFT_SETTINGS,
    Eagle3Weights,
    MtpWeights,
    deepseek_layout,
    write_head,
)
from tests.support.tiny_block_drafters import TinyBlock
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama


@cache
def target() -> LoadedModel:
    """What all of them draft for."""
    return load_model(shared_tiny_llama())


def draft_model() -> StatefulDrafter:
    """The target itself."""
    return open_draft_model(shared_tiny_llama(), target(), K)


def mtp(modules: int) -> StatefulDrafter:
    """One module is used again and again, several draft a token each."""
    settings = json.loads((target().folder / "config.json").read_text(encoding="utf-8"))
    layout = deepseek_layout(target().config.layers)
    weights = [MtpWeights.random(settings, seed) for seed in range(modules)]
    tensors = {n: t for index, each in enumerate(weights) for n, t in layout(index, each).items()}
    return _opened(lambda folder: write_head(folder, {}, tensors))


def eagle3() -> StatefulDrafter:
    """With a vocabulary of its own."""
    weights = Eagle3Weights.random()
    config = {
        **DRAFT_SETTINGS,
        "draft_vocab_size": weights.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    }
    tensors = {**weights.stored(), **weights.maps(VOCAB_SIZE)}
    return _opened(lambda folder: write_head(folder, config, tensors))


def dflash() -> StatefulDrafter:
    return _block(DFLASH["z-lab, nested"])


def dspark() -> StatefulDrafter:
    """With a confidence head."""
    return _block(next(each for each in DSPARK.values() if each.confidence))


def _block(tiny: TinyBlock) -> StatefulDrafter:
    embedding = target().model.embed(torch.arange(VOCAB_SIZE)).clone()
    tables = {"embed_tokens.weight": embedding, "lm_head.weight": embedding}
    return _opened(lambda folder: tiny.write(folder, tables))


def _opened(write: Callable[[Path], Path]) -> StatefulDrafter:
    with tempfile.TemporaryDirectory() as folder:
        return open_drafter(write(Path(folder)), target(), K)
