"""What a config.json says about experts and latent attention.

Knows: the settings of Qwen3-MoE and of DeepSeek-V2 and V3. Does not know: their tensors.
"""

from __future__ import annotations

from dataclasses import replace

from outrider_worker.model.config import MlaConfig, ModelConfig, ModelError, MoeConfig
from outrider_worker.model.qwen3 import with_normed_heads
from outrider_worker.model.settings_json import JsonSettings
from outrider_worker.model.windows import optional_window, with_window


def configure_qwen3_moe(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """Qwen3 with experts in most layers; where one layer slides, all do."""
    moe = MoeConfig(
        experts=settings.count("num_experts", settings.values.get("num_local_experts")),
        experts_per_token=settings.count("num_experts_per_tok", 8),
        expert_ffn_size=settings.count("moe_intermediate_size", 768),
        sparse_step=settings.count("decoder_sparse_step", 1),
        dense_layers=frozenset(settings.numbers("mlp_only_layers")),
        normalise=settings.flag("norm_topk_prob", False),
    )
    attending = with_window(
        with_normed_heads(common, settings), settings, optional_window(settings)
    )
    return replace(attending, moe=_checked(moe))


def configure_deepseek_v2(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """Softmax routing, at most limited to the groups with the best experts."""
    if settings.flag("norm_topk_prob", False):
        # Published code scales either these weights or normalised ones, never both.
        raise ModelError("config.json: norm_topk_prob is not supported in DeepSeek-V2")
    settings.choice("scoring_func", ("softmax",), "softmax")
    method = settings.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    grouped = method == "group_limited_greedy"
    moe = replace(
        _deepseek_moe(settings),
        grouping="group_limited_greedy" if grouped else "greedy",
        groups=settings.count("n_group", 1) if grouped else 1,
        groups_kept=settings.count("topk_group", 1) if grouped else 1,
        scale=settings.number("routed_scaling_factor", 1.0),
        first_dense_layers=settings.count("first_k_dense_replace", 0, least=0),
    )
    return replace(
        _deepseek(common, settings, interleaved=True),
        mlp_bias=settings.flag("mlp_bias", False),
        moe=_checked(moe),
    )


def configure_deepseek_v3(common: ModelConfig, settings: JsonSettings) -> ModelConfig:
    """Sigmoid routing with a correction bias (also R1)."""
    settings.choice("scoring_func", ("sigmoid",), "sigmoid")
    settings.choice("topk_method", ("noaux_tc",), "noaux_tc")
    moe = replace(
        _deepseek_moe(settings),
        grouping="noaux_tc",
        scoring="sigmoid",
        bias_corrected=True,
        groups=settings.count("n_group", 8),
        groups_kept=settings.count("topk_group", 4),
        normalise=settings.flag("norm_topk_prob", True),
        scale=settings.number("routed_scaling_factor", 2.5),
        first_dense_layers=settings.count("first_k_dense_replace", 3, least=0),
    )
    interleaved = settings.flag("rope_interleave", True)
    return replace(_deepseek(common, settings, interleaved), moe=_checked(moe))


def _deepseek(common: ModelConfig, settings: JsonSettings, interleaved: bool) -> ModelConfig:
    mla = MlaConfig(
        q_rank=settings.count_or_none("q_lora_rank", 1536),
        kv_rank=settings.count("kv_lora_rank", 512),
        nope_dim=settings.count("qk_nope_head_dim", 128),
        rope_dim=settings.count("qk_rope_head_dim", 64),
        value_dim=settings.count("v_head_dim", 128),
        interleaved=interleaved,
    )
    bias = settings.flag("attention_bias", False)
    return replace(
        common,
        kv_heads=1,
        head_dim=mla.rope_dim,
        attention_bias=bias,
        attention_out_bias=bias,
        mla=mla,
    )


def _deepseek_moe(settings: JsonSettings) -> MoeConfig:
    if settings.count("moe_layer_freq", 1) != 1:
        raise ModelError("config.json: moe_layer_freq is not supported, only 1")
    return MoeConfig(
        experts=settings.count("n_routed_experts"),
        experts_per_token=settings.count("num_experts_per_tok"),
        expert_ffn_size=settings.count("moe_intermediate_size"),
        shared_experts=settings.count("n_shared_experts", 0, least=0),
    )


def _checked(moe: MoeConfig) -> MoeConfig:
    """Raises ModelError for numbers of experts that do not fit one another."""
    group_size, rest = divmod(moe.experts, moe.groups)
    least = 2 if moe.grouping == "noaux_tc" else 1
    if rest or group_size < least or moe.groups_kept > moe.groups:
        raise ModelError(
            f"config.json: {moe.experts} experts cannot be cut into {moe.groups} groups "
            f"of which {moe.groups_kept} are kept"
        )
    if moe.experts_per_token > group_size * moe.groups_kept:
        raise ModelError(
            f"config.json: {moe.experts_per_token} experts per token cannot be chosen "
            f"from {group_size * moe.groups_kept}"
        )
    return moe
