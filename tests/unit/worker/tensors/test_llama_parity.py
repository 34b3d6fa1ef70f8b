"""Our Llama against the reference library's, on tiny random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from outrider_worker.kv import KvPool
from outrider_worker.model import CausalLM, load_model
from tests.support.tiny_models import make_tiny_llama
from tests.unit.worker.tensors.row_tables import random_text, rows_of

PAGES = [[2, 4, 1, 3]]

CONFIGS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-query": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "multi-head": {"num_attention_heads": 3, "num_key_value_heads": 3},
    "untied": {"tie_word_embeddings": False},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "llama3 rope": {
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "rope_parameters": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1234.0},
    },
}


def reference_model(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def greedy(model: CausalLM, prompt: list[int], count: int) -> list[int]:
    pool = KvPool.of_pages(model.config, 5, torch.float32)
    text = list(prompt)
    start = 0
    while len(text) < len(prompt) + count:
        hidden = model.forward(rows_of([text], PAGES, [(0, range(start, len(text)))]), pool)
        start = len(text)
        text.append(int(model.logits(hidden[-1:]).argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_greedy_tokens_agree(name: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, seed=3, **CONFIGS[name])
    model, reference = load_model(folder).model, reference_model(folder)
    prompt = random_text(150, seed=7)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        expected = reference(ids).logits[0]
        pool = KvPool.of_pages(model.config, 5, torch.float32)
        rows = rows_of([prompt], PAGES, [(0, range(len(prompt)))])
        logits = model.logits(model.forward(rows, pool))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        texts = reference.generate(
            ids[:, :40],
            attention_mask=torch.ones_like(ids[:, :40]),
            max_new_tokens=64,
            min_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert greedy(model, prompt[:40], 64) == texts[0, 40:].tolist()
