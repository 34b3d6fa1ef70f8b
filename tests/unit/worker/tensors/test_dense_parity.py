"""Dense families against the reference library's, on tiny random weights."""

from pathlib import Path

import pytest
import torch

from outrider_worker.model import load_model
from tests.support.tiny_models import make_tiny_model
from tests.unit.worker.tensors.parity import (
    PROMPT,
    YARN,
    Case,
    greedy,
    logits_of,
    reference_greedy,
    reference_model,
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES: dict[str, Case] = {
    "grouped": Case("llama"),
    "multi-query": Case("llama", {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "multi-head": Case("llama", {"num_attention_heads": 3, "num_key_value_heads": 3}),
    "untied": Case("llama", {"tie_word_embeddings": False}),
    "biased": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "wide heads": Case("llama", {"head_dim": 32}),
    "llama3 rope": Case("llama", {"rope_theta": 500_000.0, "rope_scaling": LLAMA3_ROPE}),
    "linear rope": Case("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "rope_parameters": Case(
        "llama",
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1234.0}},
    ),
    "yarn rope": Case("llama", {"rope_scaling": YARN}),
    "yarn rope, mscale": Case(
        "llama", {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}
    ),
    "yarn rope, own bounds": Case(
        "llama", {"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2, "truncate": False}}
    ),
    "yarn rope, own factor": Case("llama", {"rope_scaling": {**YARN, "attention_factor": 1.3}}),
    "yarn rope, bound beyond the head": Case("llama", {"rope_theta": 10.0, "rope_scaling": YARN}),
    "mistral": Case("mistral", {"tie_word_embeddings": False}),
    "mistral, sliding": Case("mistral", {"sliding_window": 37}),
    "mistral, page-wide window": Case("mistral", {"sliding_window": 64}),
    "qwen2": Case("qwen2"),
    "qwen2, upper layers slide": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
    ),
    "qwen2, listed layers slide": Case(
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 50,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen2, window not used": Case("qwen2", {"sliding_window": 20, "max_window_layers": 0}),
    "qwen2, yarn": Case("qwen2", {"rope_scaling": {**YARN, "factor": 2.0}}),
    "qwen3": Case("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen3, biased and wide": Case("qwen3", {"attention_bias": True, "head_dim": 32}),
    "qwen3, sliding": Case(
        "qwen3", {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 0}
    ),
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_logits_and_greedy_tokens_agree(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = make_tiny_model(tmp_path, case.family, seed=3, **case.settings)
    model, reference = load_model(folder).model, reference_model(folder)
    expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(model, PROMPT), expected, rtol=0, atol=1e-4)
    prompt = PROMPT[:40]
    assert greedy(model, prompt, 64) == reference_greedy(reference, prompt, 64)


@pytest.mark.parametrize("name", ["mistral, sliding", "qwen2, upper layers slide", "qwen3"])
def test_prefill_in_chunks_of_every_size_equals_one_prefill(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = load_model(make_tiny_model(tmp_path, case.family, **case.settings)).model
    text = PROMPT[:70]
    whole = logits_of(model, text)
    differing = [c for c in range(1, 70) if not torch.equal(logits_of(model, text, c), whole)]
    assert differing == []


@pytest.mark.parametrize("name", ["mistral, sliding", "qwen2, upper layers slide"])
def test_a_window_changes_what_far_rows_see(name: str, tmp_path: Path) -> None:
    """Else parity could hold with windows ignored on both sides."""
    case = CASES[name]
    off = {"sliding_window": None, "use_sliding_window": False}
    folders = (
        make_tiny_model(tmp_path / "sliding", case.family, **case.settings),
        make_tiny_model(tmp_path / "full", case.family, **{**case.settings, **off}),
    )
    sliding, full = (logits_of(load_model(folder).model, PROMPT) for folder in folders)
    window = case.settings["sliding_window"]
    assert torch.equal(sliding[:window], full[:window])
    assert not torch.allclose(sliding[window:], full[window:], atol=1e-2)
