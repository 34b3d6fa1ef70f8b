"""The hyper-parameters of a decoder.

Knows: what a model needs to be built and its cache to be sized. Does not know: files and the names
settings have in them (config_json), weights, tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider_worker.model.rope_scaling import RopeScaling, YarnScaling


class ModelError(Exception):
    """A model cannot be found, read or run; the message names what is wrong."""


@dataclass(frozen=True)
class MoeConfig:
    """Which layers route to experts, and how they choose."""

    experts: int
    experts_per_token: int
    expert_ffn_size: int
    shared_experts: int = 0
    """Experts that see every token, side by side in one feed-forward."""
    first_dense_layers: int = 0
    sparse_step: int = 1
    """Layer i may route where i + 1 is a multiple of this."""
    dense_layers: frozenset[int] = frozenset()
    normalise: bool = False
    """Whether the weights of the chosen experts are made to add up to one."""
    scale: float = 1.0
    """Factor on the routed part."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    groups_kept: int = 1
    grouping: Literal["greedy", "group_limited_greedy", "noaux_tc"] = "greedy"
    """greedy: the best of all experts; the others: the best of the best `groups_kept` groups, a
    group being as good as its best expert (group_limited_greedy) or its best two (noaux_tc)."""
    bias_corrected: bool = False
    """Whether a learned bias per expert takes part in choosing, though not in weighing."""

    def routes(self, layer: int) -> bool:
        """Whether `layer` has experts; the others have an ordinary feed-forward."""
        stepped = (layer + 1) % self.sparse_step == 0
        return layer >= self.first_dense_layers and stepped and layer not in self.dense_layers


@dataclass(frozen=True)
class MlaConfig:
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1)."""

    q_rank: int | None
    """Size of the compressed query; None where queries are projected directly."""
    kv_rank: int
    """Size of the latent that all heads' keys and values are made from."""
    nope_dim: int
    """Dimensions of a query or key that do not rotate."""
    rope_dim: int
    """Dimensions that do; the key's are shared by all heads."""
    value_dim: int
    """Dimensions of a head's value."""
    interleaved: bool = True
    """Whether rotating dimensions pair with their neighbours, not with those half a head off."""


@dataclass(frozen=True)
class Fp8Blocks:
    """Weights stored as float8_e4m3fn with one inverse scale per block."""

    rows: int
    columns: int


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters of one decoder."""

    architecture: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    layers: int
    query_heads: int
    kv_heads: int
    """Heads in the cache: one with latent attention."""
    head_dim: int
    """Size of a head; with latent attention, of its rotating part."""
    max_positions: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Every token that ends a text."""
    attention_bias: bool = False
    """Biases on q, k and v; with latent attention, on the first product of each."""
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether every head's query and key are normalised before they are rotated."""
    sliding_window: int | None = None
    """Most keys that a row of a sliding layer sees, itself included. None: no layer slides."""
    sliding_layers: tuple[bool, ...] | None = None
    """Which layers slide, where only some do."""
    moe: MoeConfig | None = None
    mla: MlaConfig | None = None
    mtp_layers: int = 0
    """Layers behind the decoder's own that draft; not part of the model."""
    quantisation: Fp8Blocks | None = None

    @property
    def key_dim(self) -> int:
        """Size of a key in the cache."""
        return self.mla.kv_rank + self.mla.rope_dim if self.mla else self.head_dim

    @property
    def value_dim(self) -> int:
        """Size of a value in the cache."""
        return self.mla.kv_rank if self.mla else self.head_dim

    @property
    def values_in_keys(self) -> bool:
        """Whether a value is the first `value_dim` entries of its key, and not stored again."""
        return self.mla is not None

    @property
    def softmax_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        if self.mla is None:
            return float(self.head_dim**-0.5)
        scaling = self.rope_scaling
        sharper = scaling.softmax_factor if isinstance(scaling, YarnScaling) else 1.0
        return float((self.mla.nope_dim + self.mla.rope_dim) ** -0.5 * sharper)

    def window(self, layer: int) -> int | None:
        """How many keys a row of `layer` sees at most; None: all."""
        slides = self.sliding_layers is None or self.sliding_layers[layer]
        return self.sliding_window if slides else None
