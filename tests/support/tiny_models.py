"""Tiny checkpoints of dense families in the Hugging Face layout: random weights, real files.

For tests that need a whole model but not a clever one. Same arguments, same bytes. Made without
the reference library, so that only parity tests pay for importing it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

BOS, EOS, UNK = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = 259
"""Three special tokens and the 256 bytes."""

_DEFAULTS: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}
_KEPT_NULLS = {"sliding_window"}
"""Settings whose null means something else than their absence."""


@cache
def shared_tiny_llama() -> Path:
    """The default tiny Llama, made once per test process. Do not write into the folder."""
    return make_tiny_llama(Path(tempfile.mkdtemp(prefix="outrider-tiny-")))


def make_tiny_llama(folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """See make_tiny_model."""
    return make_tiny_model(folder, "llama", seed=seed, **overrides)


def make_tiny_model(folder: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model, tokenizer and chat template into `folder`; returns the folder.

    overrides replace entries of config.json; a value of None removes one.
    """
    merged = {**_DEFAULTS, **_FAMILIES[family], **overrides}
    config = {k: v for k, v in merged.items() if v is not None or k in _KEPT_NULLS}
    return write_tiny_model(folder, config, tiny_weights(config, seed))


def write_tiny_model(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> Path:
    """Write a model of any family, with the tokenizer and template that all tiny ones share."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 0]})
    _write_tokenizer(folder)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tiny_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random weights for the config.json of a dense model: see random_weights."""
    return random_weights(_shapes(config), seed)


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Weights large enough that texts vary from token to token."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _random(shape, generator, around=1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def _random(shape: tuple[int, ...], generator: torch.Generator, around: float) -> Tensor:
    scale = 0.2 if around else 1.5 / shape[-1] ** 0.5 if len(shape) == 2 else 0.1
    return around + scale * torch.randn(shape, generator=generator)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    d, vocab, ffn = (config[k] for k in ("hidden_size", "vocab_size", "intermediate_size"))
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d)}
    shapes["model.norm.weight"] = (d,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, d)
    qkv = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d)}
    mlp = {"gate_proj": (ffn, d), "up_proj": (ffn, d), "down_proj": (d, ffn)}
    family, biased = config["model_type"], config["attention_bias"]
    blocks = (
        ("self_attn", qkv, biased or family == "qwen2"),
        ("self_attn", {"o_proj": (d, q)}, biased),
        ("mlp", mlp, config["mlp_bias"]),
    )
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for block, products, bias in blocks:
            for name, shape in products.items():
                shapes[f"{layer}.{block}.{name}.weight"] = shape
                if bias:
                    shapes[f"{layer}.{block}.{name}.bias"] = shape[:1]
        if family == "qwen3":
            shapes[f"{layer}.self_attn.q_norm.weight"] = (config["head_dim"],)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (config["head_dim"],)
        shapes[f"{layer}.input_layernorm.weight"] = (d,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (d,)
    return shapes


def _write_tokenizer(folder: Path) -> None:
    """Byte-level, no merges: ids 0–2 are special, 3–258 the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([UNK, BOS, EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([UNK, BOS, EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
        "pad_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write(folder / "tokenizer_config.json", settings)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
