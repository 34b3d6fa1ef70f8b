"""Families with experts and latent attention against the reference library's."""

from pathlib import Path

import pytest
import torch

from outrider_worker.model import ModelError, load_model
from outrider_worker.model.config_json import parse_config
from tests.support.tiny_sparse_models import make_tiny_sparse, settings_of
from tests.unit.worker.tensors.parity import (
    PROMPT,
    YARN,
    Case,
    greedy,
    logits_of,
    reference_greedy,
    reference_model,
)

CASES: dict[str, Case] = {
    "qwen3_moe": Case("qwen3_moe"),
    "qwen3_moe, every second layer, weights as scored, sliding": Case(
        "qwen3_moe",
        {
            "decoder_sparse_step": 2,
            "mlp_only_layers": [],
            "norm_topk_prob": False,
            "use_sliding_window": True,
            "sliding_window": 37,
        },
    ),
    "v2": Case("deepseek_v2"),
    "v2, one group, plain queries": Case(
        "deepseek_v2",
        {"topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": None},
    ),
    "v2, biased, yarn": Case(
        "deepseek_v2",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "v3": Case("deepseek_v3"),
    "v3, one group, weights as scored, all layers route": Case(
        "deepseek_v3",
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 0},
    ),
    "v3, yarn": Case(
        "deepseek_v3", {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}}
    ),
    "v3, halves rotate": Case("deepseek_v3", {"rope_interleave": False}),
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_logits_and_greedy_tokens_agree(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = make_tiny_sparse(tmp_path, case.family, seed=3, **case.settings)
    model, reference = load_model(folder).model, reference_model(folder)
    expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(model, PROMPT), expected, rtol=0, atol=1e-4)
    prompt = PROMPT[:40]
    assert greedy(model, prompt, 64) == reference_greedy(reference, prompt, 64)


def test_v2_weights_that_are_normalised_and_scaled_are_refused() -> None:
    """The reference library ignores the setting, the published code then leaves out the scale."""
    settings = {**settings_of("deepseek_v2"), "norm_topk_prob": True}
    with pytest.raises(ModelError, match="norm_topk_prob"):
        parse_config(settings, {})
