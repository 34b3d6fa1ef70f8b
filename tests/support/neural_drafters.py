"""Small neural drafters of every family for the tiny Llama, opened from files as published."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.device import StatefulDrafter
from outrider_worker.speculate.draft_model import open_draft_model
from tests.support.block_layouts import DFLASH, DSPARK
from tests.support.engines import tiny_model
from tests.support.head_checkpoints import (
    DRAFT_SETTINGS,
    Eagle3Weights,
    MtpWeights,
    deepseek_layout,
    write_head,
)
from tests.support.tiny_block_drafters import TinyBlock
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama

Make = Callable[[int], StatefulDrafter]
"""From the longest draft to a drafter, as new."""


def _draft_model(max_draft_tokens: int) -> StatefulDrafter:
    """The target itself."""
    return open_draft_model(shared_tiny_llama(), tiny_model(), max_draft_tokens)


def _mtp(modules: int, max_draft_tokens: int) -> StatefulDrafter:
    """One module is used again and again, several draft a token each."""
    target = tiny_model()
    settings = json.loads((target.folder / "config.json").read_text(encoding="utf-8"))
    layout = deepseek_layout(target.config.layers)
    weights = [MtpWeights.random(settings, seed) for seed in range(modules)]
    tensors = {n: t for index, each in enumerate(weights) for n, t in layout(index, each).items()}
    return _opened(lambda folder: write_head(folder, {}, tensors), max_draft_tokens)


def eagle3_head(max_draft_tokens: int, context_tokens: int = 2048) -> StatefulDrafter:
    """With a vocabulary of its own."""
    weights = Eagle3Weights.random()
    config = {
        **DRAFT_SETTINGS,
        "max_position_embeddings": context_tokens,
        "draft_vocab_size": weights.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    }
    tensors = {**weights.stored(), **weights.maps(VOCAB_SIZE)}
    return _opened(lambda folder: write_head(folder, config, tensors), max_draft_tokens)


def block_drafter(tiny: TinyBlock, max_draft_tokens: int) -> StatefulDrafter:
    """A DFlash or DSpark in one of the published layouts."""
    embedding = tiny_model().model.embed(torch.arange(VOCAB_SIZE)).clone()
    tables = {"embed_tokens.weight": embedding, "lm_head.weight": embedding}
    return _opened(lambda folder: tiny.write(folder, tables), max_draft_tokens)


def _opened(write: Callable[[Path], Path], max_draft_tokens: int) -> StatefulDrafter:
    with tempfile.TemporaryDirectory() as folder:
        return open_drafter(write(Path(folder)), tiny_model(), max_draft_tokens)


KINDS: Mapping[str, Make] = {
    "draft-model": _draft_model,
    "mtp": partial(_mtp, 1),
    "mtp-vanilla": partial(_mtp, 3),
    "eagle3": eagle3_head,
    "dflash": partial(block_drafter, DFLASH["z-lab, nested"]),
    "dspark": partial(block_drafter, DSPARK["DeepSpec, rnn, calibrated"]),
}
"""Families, each with the state that is its own."""
