"""What is read from config.json and generation_config.json, and what is refused."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outrider_worker.model import ModelConfig, ModelError
from outrider_worker.model.config import Fp8Blocks, MlaConfig, MoeConfig
from outrider_worker.model.config_json import parse_config, read_config
from outrider_worker.model.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling
from tests.support.tiny_models import make_tiny_llama

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 259,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}

DEEPSEEK_R1: Mapping[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}


def parsed(base: Mapping[str, Any] = LLAMA, **changes: Any) -> ModelConfig:
    """base with entries replaced or, by ..., removed."""
    return parse_config({k: v for k, v in {**base, **changes}.items() if v is not ...}, {})


def family(name: str, **changes: Any) -> ModelConfig:
    return parsed(architectures=[f"{name}ForCausalLM"], **changes)


def test_a_plain_llama() -> None:
    config = parsed()
    assert (config.layers, config.query_heads, config.kv_heads, config.head_dim) == (2, 3, 1, 16)
    assert (config.key_dim, config.value_dim, config.values_in_keys) == (16, 16, False)
    assert (config.bos_id, config.eos_ids) == (1, (2,))
    assert (config.rope_theta, config.rope_scaling) == (10_000.0, None)
    assert config.softmax_scale == 0.25
    assert (config.window(0), config.moe, config.mla, config.mtp_layers) == (None, None, None, 0)


def test_generation_settings_go_first() -> None:
    assert parse_config(LLAMA, {"eos_token_id": [2, 0]}).eos_ids == (2, 0)
    assert parsed(eos_token_id=...).eos_ids == ()
    with pytest.raises(ModelError, match="eos_token_id must hold token ids"):
        parse_config(LLAMA, {"eos_token_id": ["</s>"]})


def test_null_counts_as_missing() -> None:
    config = parsed(num_key_value_heads=None, head_dim=None, rope_scaling=None)
    assert (config.kv_heads, config.head_dim, config.rope_scaling) == (3, 16, None)


def test_rotary_settings_of_both_generations() -> None:
    older = parsed(rope_theta=5e5, rope_scaling=LLAMA3_ROPE)
    newer = parsed(rope_parameters={**LLAMA3_ROPE, "rope_theta": 5e5})
    assert older.rope_scaling == newer.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert older.rope_theta == newer.rope_theta == 5e5
    assert parsed(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == LinearScaling(2.0)


def test_yarn_settings() -> None:
    assert parsed(rope_scaling=YARN).rope_scaling == YarnScaling(40.0, 4096)
    full = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16, "truncate": False}
    assert parsed(rope_scaling=full).rope_scaling == YarnScaling(
        40.0, 4096, beta_fast=16.0, mscale=1.0, mscale_all_dim=0.7, truncate=False
    )
    inferred = {"type": "yarn", "factor": None, "original_max_position_embeddings": 256}
    assert parsed(rope_scaling=inferred).rope_scaling == YarnScaling(4.0, 256)


def test_yarn_amplitude_and_softmax_factor() -> None:
    """Values of 0.1·m·ln(40) + 1, worked out by hand."""
    assert YarnScaling(40.0, 4096).amplitude == pytest.approx(1.36888795)
    same = YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert same.amplitude == 1.0
    assert same.softmax_factor == pytest.approx(1.36888795**2)
    assert YarnScaling(40.0, 4096, attention_factor=1.5).amplitude == 1.5
    assert YarnScaling(0.5, 4096).amplitude == YarnScaling(0.5, 4096).softmax_factor == 1.0


def test_biases_by_family() -> None:
    def biases(config: ModelConfig) -> tuple[bool, bool, bool]:
        return config.attention_bias, config.attention_out_bias, config.mlp_bias

    on: dict[str, Any] = {"attention_bias": True, "mlp_bias": True}
    assert biases(parsed()) == (False, False, False)
    assert biases(parsed(**on)) == (True, True, True)
    assert biases(family("Mistral", **on)) == (False, False, False)
    assert biases(family("Qwen2")) == biases(family("Qwen2", **on)) == (True, False, False)
    assert biases(family("Qwen3", **on)) == (True, True, False)


def test_windows_by_family() -> None:
    def windows(config: ModelConfig) -> list[int | None]:
        return [config.window(layer) for layer in range(config.layers)]

    upper: dict[str, Any] = {
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    }
    listed: dict[str, Any] = {**upper, "layer_types": ["sliding_attention", "full_attention"]}
    assert windows(parsed(sliding_window=8)) == [None, None]
    assert windows(family("Mistral", sliding_window=8)) == [8, 8]
    assert windows(family("Mistral")) == [4096, 4096]
    assert windows(family("Mistral", sliding_window=None)) == [None, None]
    assert windows(family("Qwen2", sliding_window=8, max_window_layers=0)) == [None, None]
    assert windows(family("Qwen2", **upper)) == windows(family("Qwen3", **upper)) == [None, 8]
    assert windows(family("Qwen2", **listed)) == [8, None]


def test_qwen3_normalises_heads_of_their_own_size() -> None:
    assert family("Qwen3").head_dim == 128
    assert family("Qwen3", head_dim=32).head_dim == 32
    assert family("Qwen3").qk_norm
    assert not family("Qwen2").qk_norm


def test_qwen3_moe() -> None:
    config = family(
        "Qwen3Moe",
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    moe = config.moe
    assert moe == MoeConfig(128, 8, 768, sparse_step=2, dense_layers=frozenset({3}), normalise=True)
    assert [layer for layer in range(8) if moe.routes(layer)] == [1, 5, 7]
    assert (config.qk_norm, config.head_dim, config.window(0)) == (True, 16, None)
    sliding = family("Qwen3Moe", num_experts=8, use_sliding_window=True, sliding_window=5)
    assert (sliding.window(0), sliding.window(1)) == (5, 5)
    with pytest.raises(ModelError, match="8 experts per token cannot be chosen from 4"):
        family("Qwen3Moe", num_experts=4)


def test_deepseek_r1() -> None:
    config = parsed(DEEPSEEK_R1)
    assert config.mla == MlaConfig(1536, 512, 128, 64, 128, interleaved=True)
    assert config.moe == MoeConfig(
        experts=256,
        experts_per_token=8,
        expert_ffn_size=2048,
        shared_experts=1,
        first_dense_layers=3,
        normalise=True,
        scale=2.5,
        scoring="sigmoid",
        groups=8,
        groups_kept=4,
        grouping="noaux_tc",
        bias_corrected=True,
    )
    assert (config.kv_heads, config.key_dim, config.value_dim) == (1, 576, 512)
    assert config.values_in_keys
    assert config.mtp_layers == 1
    assert config.quantisation == Fp8Blocks(128, 128)
    assert config.softmax_scale == pytest.approx(192**-0.5 * 1.36888795**2)
    assert not config.moe.routes(2)
    assert config.moe.routes(3)


def test_deepseek_v2() -> None:
    v2 = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "q_lora_rank": None,
        "num_nextn_predict_layers": ...,
        "quantization_config": ...,
    }
    limited = parsed(DEEPSEEK_R1, **v2, topk_method="group_limited_greedy").moe
    assert limited is not None
    assert (limited.grouping, limited.groups, limited.groups_kept) == ("group_limited_greedy", 8, 4)
    assert (limited.scoring, limited.bias_corrected, limited.normalise) == ("softmax", False, False)
    lite = parsed(DEEPSEEK_R1, **v2, topk_method="greedy")
    assert lite.mla is not None
    assert lite.mla.q_rank is None
    assert lite.moe is not None
    assert (lite.moe.grouping, lite.moe.groups, lite.moe.groups_kept) == ("greedy", 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GizmoForCausalLM"]}, "GizmoForCausalLM.*known: .*LlamaForCausalLM"),
        ({"architectures": ...}, "names no architecture"),
        ({"hidden_size": ...}, "hidden_size must be a positive whole number, not None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"num_key_value_heads": 2}, "3 query heads cannot share 2"),
        ({"head_dim": 15}, "even head size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number above 0, not 'small'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0, not 0"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number above 0, not nan"),
        ({"rope_theta": 0}, "rope_theta must be a number above 1, not 0"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be a number above 0"),
        (
            {"rope_scaling": {**YARN, "factor": math.inf}},
            "factor must be a number above 0, not inf",
        ),
        (
            {"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 1.0}},
            "high_freq_factor must be a number above 1, not 1.0",
        ),
        ({"eos_token_id": [2, 259]}, r"token ids \[259\] are outside of a vocabulary of 259"),
        ({"bos_token_id": -1}, r"token ids \[-1\] are outside"),
        ({"eos_token_id": True}, "eos_token_id must hold token ids, not True"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor must be a num"),
        ({"rope_parameters": {"full_attention": {}}}, "differ by layer are not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantisation 'gptq' is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "need weight_block_size .* not None"),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "'e5m2' .* only 'e4m3'"),
    ],
)
def test_settings_that_cannot_be_honoured(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parsed(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "must list 2 layers"),
        ({"layer_types": ["full_attention", "odd"]}, r"\['odd'\] are not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "no window is set"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window must be a positive"),
    ],
)
def test_windows_that_cannot_be_honoured(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        family("Qwen2", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 7}, "256 experts cannot be cut into 7 groups"),
        ({"n_group": 256}, "256 experts cannot be cut into 256 groups"),
        ({"topk_group": 9}, "of which 9 are kept"),
        ({"num_experts_per_tok": 129}, "129 experts per token cannot be chosen from 128"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported: only sigmoid"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported: only noaux_tc"),
        ({"n_routed_experts": None}, "n_routed_experts must be a positive whole number"),
    ],
)
def test_experts_that_cannot_be_honoured(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parsed(DEEPSEEK_R1, **changes)


def test_broken_or_missing_files(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path)
    assert read_config(folder).eos_ids == (2, 0)
    (folder / "generation_config.json").unlink()
    assert read_config(folder).eos_ids == (2,)
    for content, message in (("{", "cannot be read"), ("[]", "holds no JSON object")):
        (folder / "config.json").write_text(content)
        with pytest.raises(ModelError, match=rf"config\.json {message}"):
            read_config(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        read_config(folder)
