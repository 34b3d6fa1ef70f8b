"""The heads that come with the worker are whole, small, and say what they are worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from outrider_worker.attention import default_attention
from outrider_worker.heads import shipped_head, shipped_heads
from outrider_worker.model import resolve_model
from outrider_worker.model.config import ModelError
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.loader import load_model
from outrider_worker.open_drafters import Target, drafter_digests, open_drafters
from outrider_worker.train.kinds import KINDS
from tests.support.tiny_models import shared_tiny_llama

_MOST_BYTES = 9 * 2**20


def test_every_head_is_a_checkpoint_with_a_card() -> None:
    heads = shipped_heads()
    assert heads
    for head in heads:
        config = json.loads((head / "config.json").read_text())
        assert config["drafter"] in KINDS
        with safe_open(head / "model.safetensors", framework="pt") as file:
            assert file.get_slice("d2t").get_shape() == [config["draft_vocab_size"]]
        card = (head / "README.md").read_text()
        for part in ("## Data", "## Training", "## Acceptance", "## What it is good for"):
            assert part in card, f"{head.name}: {part}"
        assert sum(file.stat().st_size for file in head.iterdir()) <= _MOST_BYTES


def test_a_head_is_found_for_its_target_and_for_no_other(tmp_path: Path) -> None:
    assert shipped_head(shared_tiny_llama()) is None
    assert shipped_head(tmp_path) is None


def test_a_model_without_one_is_told_how_to_get_one() -> None:
    cpu = torch.device("cpu")
    target = Target(load_model(shared_tiny_llama()), torch.float32, cpu, default_attention(cpu))
    with pytest.raises(ModelError, match="outrider train-drafter"):
        open_drafters(["ngram", "head"], 2, target)
    assert drafter_digests(["head"]) == ("head",)


@pytest.mark.e2e
def test_the_demo_model_has_one() -> None:
    demo = resolve_model("demo")
    folder = demo if demo.is_dir() else converted_folder(demo, lambda step, done: None)
    head = shipped_head(folder)
    assert head is not None
    assert head.name == "smollm2-135m-instruct"
