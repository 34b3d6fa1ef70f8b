"""One decoder layer that can be trained, run over unrolled drafts.

A draft of s + 1 tokens from position i is, in training, row i carried through s steps. At step s it
stands at position i + s and sees what it will see when it serves: the keys of committed positions
≤ i, made from the target's features, and its own keys of steps 1 … s.

Knows: a plain block's arithmetic. Does not know: what goes in, losses, files.

Letters: B texts, P pairs of a text, A rows drawn from a text, H heads, D a head's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider_worker.model.config import ModelConfig
from outrider_worker.model.rotary import Rotary


@dataclass
class Seen:
    """Keys and values that rows may attend to."""

    keys: Tensor
    """[B, P, H, D] of committed pairs"""
    values: Tensor
    rows: Tensor
    """[B, A] int64: which pairs the rows are; each sees the pairs up to its own."""
    own_keys: list[Tensor] = field(default_factory=list)
    """[B, A, H, D] for each further step"""
    own_values: list[Tensor] = field(default_factory=list)


class DraftAttention(nn.Module):
    """Grouped-query attention over `Seen`."""

    def __init__(self, config: ModelConfig, inputs: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.query_heads,
            config.kv_heads,
            config.head_dim,
        )
        self.scale, self.rotary = config.softmax_scale or config.head_dim**-0.5, rotary
        kv, bias = self.kv_heads * self.head_dim, config.attention_bias
        self.q_proj = nn.Linear(inputs, self.heads * self.head_dim, bias)
        self.k_proj = nn.Linear(inputs, kv, bias)
        self.v_proj = nn.Linear(inputs, kv, bias)
        self.o_proj = nn.Linear(
            self.heads * self.head_dim, config.hidden_size, config.attention_out_bias
        )
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, config.rms_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, config.rms_eps)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, P, inputs] at positions [B, P] → keys and values [B, P, H, D]."""
        keys = self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        keys = self.k_norm(keys) if hasattr(self, "k_norm") else keys
        values = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        return self._rotated(keys, positions), values

    def forward(self, x: Tensor, positions: Tensor, seen: Seen) -> Tensor:
        """x [B, A, inputs] at positions [B, A] → [B, A, d]"""
        q = self.q_proj(x).unflatten(-1, (self.heads, self.head_dim))
        q = self._rotated(self.q_norm(q) if hasattr(self, "q_norm") else q, positions)
        mixed: Tensor = self.o_proj(self._mixed(q * self.scale, seen).flatten(2))
        return mixed

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        turned = Rotary.rotate(x.flatten(0, 1), self.rotary.turns(positions.flatten()))
        return turned.view_as(x)

    def _mixed(self, q: Tensor, seen: Seen) -> Tensor:
        """q [B, A, Hq, D] → [B, A, Hq, D]"""
        B, A = q.shape[:2]
        pairs = seen.keys.shape[1]
        grouped = q.view(B, A, self.kv_heads, -1, self.head_dim)  # [B, A, H, G, D]
        committed = torch.einsum("bahgd,bphd->bahgp", grouped, seen.keys)
        hidden = torch.arange(pairs, device=q.device) > seen.rows[..., None]
        committed = committed.masked_fill(hidden[:, :, None, None], float("-inf"))
        own = [(grouped * keys[:, :, :, None]).sum(-1, keepdim=True) for keys in seen.own_keys]
        weights = torch.cat([committed, *own], dim=-1).softmax(-1)
        mixed = torch.einsum("bahgp,bphd->bahgd", weights[..., :pairs], seen.values)
        for step, values in enumerate(seen.own_values):
            mixed = mixed + weights[..., pairs + step, None] * values[:, :, :, None]
        return mixed.reshape(B, A, self.heads, self.head_dim)


class GatedMlp(nn.Module):
    """down(silu(gate(x)) · up(x))"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, inner, bias = config.hidden_size, config.ffn_size, config.mlp_bias
        self.gate_proj = nn.Linear(d, inner, bias)
        self.up_proj = nn.Linear(d, inner, bias)
        self.down_proj = nn.Linear(inner, d, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[…, d] → […, d]"""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """A pre-normalised block whose attention's input is made by whoever owns it."""

    def __init__(self, config: ModelConfig, inputs: int) -> None:
        """inputs: width of what attention is given, d or 2d."""
        super().__init__()
        norm_shape, eps = config.hidden_size, config.rms_eps
        rotary = Rotary(config, torch.float32, torch.device("cpu"))
        self.input_layernorm = nn.RMSNorm(norm_shape, eps)
        self.self_attn = DraftAttention(config, inputs, rotary)
        self.post_attention_layernorm = nn.RMSNorm(norm_shape, eps)
        self.mlp = GatedMlp(config)

    def finish(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """What attention gave is added, then the feed-forward's; all [B, A, d]."""
        x = residual + mixed
        fed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a block of the target. Where attention is wider than the target's, what it had
        becomes the right half, and the left half starts small and random."""
        own = self.state_dict()
        for name, weight in weights.items():
            if own[name].shape == weight.shape:
                own[name].copy_(weight)
            else:
                own[name][:, -weight.shape[1] :].copy_(weight)
                own[name][:, : -weight.shape[1]].normal_(0.0, 0.02)
