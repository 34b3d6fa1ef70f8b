"""The tensors that a checkpoint of a decoder must hold, by name and shape.

Knows: names in the Hugging Face layout. Does not know: files, what is done with the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from outrider_worker.model.config import ModelConfig

Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]
"""Names and shapes of tensors."""


def tensor_shapes(
    config: ModelConfig,
    attention: Callable[[ModelConfig, int], Shapes] | None = None,
    ffn: Callable[[ModelConfig, int], Shapes] | None = None,
) -> Mapping[str, Shape]:
    """Name and shape of every tensor that a checkpoint must hold.

    attention, ffn: those of one layer, where a family has its own.
    """
    return dict(_tensor_shapes(config, attention or attention_shapes, ffn or ffn_shapes))


def _tensor_shapes(
    config: ModelConfig,
    attention: Callable[[ModelConfig, int], Shapes],
    ffn: Callable[[ModelConfig, int], Shapes],
) -> Shapes:
    d, vocab = config.hidden_size, config.vocab_size
    yield "model.embed_tokens.weight", (vocab, d)
    yield "model.norm.weight", (d,)
    if not config.tie_embeddings:
        yield "lm_head.weight", (vocab, d)
    for layer in range(config.layers):
        yield f"model.layers.{layer}.input_layernorm.weight", (d,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (d,)
        yield from attention(config, layer)
        yield from ffn(config, layer)


def attention_shapes(config: ModelConfig, layer: int) -> Shapes:
    """The tensors of grouped-query attention."""
    prefix, d = f"model.layers.{layer}.self_attn", config.hidden_size
    q, kv = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
        yield from linear_shapes(f"{prefix}.{name}", rows, d, config.attention_bias)
    yield from linear_shapes(f"{prefix}.o_proj", d, q, config.attention_out_bias)
    if config.qk_norm:
        yield f"{prefix}.q_norm.weight", (config.head_dim,)
        yield f"{prefix}.k_norm.weight", (config.head_dim,)


def ffn_shapes(config: ModelConfig, layer: int) -> Shapes:
    """The tensors of the gated feed-forward of a layer."""
    prefix = f"model.layers.{layer}.mlp"
    return gated_shapes(prefix, config.hidden_size, config.ffn_size, config.mlp_bias)


def gated_shapes(prefix: str, size: int, inner: int, bias: bool = False) -> Shapes:
    """The tensors of one gated feed-forward."""
    yield from linear_shapes(f"{prefix}.gate_proj", inner, size, bias)
    yield from linear_shapes(f"{prefix}.up_proj", inner, size, bias)
    yield from linear_shapes(f"{prefix}.down_proj", size, inner, bias)


def linear_shapes(name: str, rows: int, columns: int, bias: bool = False) -> Shapes:
    """The tensors of one product."""
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)
