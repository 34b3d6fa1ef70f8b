"""A model of ours and the reference library's, run over the same text."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider_worker.kv import KvPool
from outrider_worker.model import CausalLM
from tests.unit.worker.tensors.row_tables import random_text, rows_of

PAGES = [[2, 4, 1, 3]]
PROMPT = random_text(150, seed=7)
"""Longer than two pages and than every sliding window here."""

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class Case:
    """A family with some of its settings changed."""

    family: str
    settings: dict[str, Any] = field(default_factory=dict)


def reference_model(folder: Path) -> Any:
    """The reference library's model of the checkpoint in `folder`, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def logits_of(model: CausalLM, text: list[int], chunk: int | None = None) -> Tensor:
    """[tokens, V], the text fed `chunk` tokens at a time."""
    pool = KvPool.of_pages(model.config, 5, torch.float32)
    size = chunk or len(text)
    parts = [range(start, min(len(text), start + size)) for start in range(0, len(text), size)]
    hidden = [model.forward(rows_of([text], PAGES, [(0, part)]), pool) for part in parts]
    return model.logits(torch.cat(hidden))


def greedy(model: CausalLM, prompt: list[int], count: int) -> list[int]:
    """`count` tokens behind `prompt`, one forward each."""
    pool = KvPool.of_pages(model.config, 5, torch.float32)
    text = list(prompt)
    start = 0
    while len(text) < len(prompt) + count:
        hidden = model.forward(rows_of([text], PAGES, [(0, range(start, len(text)))]), pool)
        start = len(text)
        text.append(int(model.logits(hidden[-1:]).argmax()))
    return text[len(prompt) :]


def reference_greedy(reference: Any, prompt: list[int], count: int) -> list[int]:
    """The same by the reference library."""
    ids = torch.tensor([prompt])
    texts = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = texts[0, len(prompt) :].tolist()
    return tokens
