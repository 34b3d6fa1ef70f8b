"""The heads that can be trained: the trainable twins of model.draft.mtp and model.draft.eagle3.

Parameters have the names under which checkpoints are published, so that an export is a copy.

Knows: how a head makes its layer's input, what it carries on. Does not know: data, losses, files.

Letters: B texts, P pairs, A rows, d hidden size, V the target's vocabulary, Vd the reduced one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from outrider_worker.train.layer import DraftLayer, Seen
from outrider_worker.train.target import TargetWeights


class Unrolled(Protocol):
    """A batch as `TrainedHead.unroll` reads it."""

    @property
    def token_ids(self) -> Tensor:
        """[B, P + 1] int64"""
        ...

    @property
    def features(self) -> Tensor:
        """[B, P, F] of the target's residual stream, where this kind of head taps it"""
        ...

    @property
    def rows(self) -> Tensor:
        """[B, A] int64, pairs to draft from"""
        ...


class TrainedHead(nn.Module, ABC):
    """One layer, and what is around it; kinds differ in the four methods at the end."""

    layer: DraftLayer

    def __init__(self, target: TargetWeights, kept_ids: Tensor) -> None:
        """kept_ids [Vd] int64: the tokens that it drafts."""
        super().__init__()
        self.register_buffer("embedding", target.embedding, persistent=False)
        self.register_buffer("kept_ids", kept_ids, persistent=False)

    def unroll(self, batch: Unrolled, steps: int) -> list[Tensor]:
        """Logits [B, A, Vd] of drafts 1 … steps, each made from the text's own tokens before it."""
        ids, rows = batch.token_ids, batch.rows
        last = ids.shape[1] - 1
        x, residual = self.enter(self._embedded(ids[:, 1:]), self.fuse(batch.features))
        positions = torch.arange(last, device=ids.device).expand(len(ids), -1)
        attention = self.layer.self_attn
        seen = Seen(*attention.keys_values(x, positions), rows)
        x, residual = _gathered(x, rows), _gathered(residual, rows)
        carried, logits = residual, list[Tensor]()
        for step in range(steps):
            if step:
                fed = ids.gather(1, (rows + 1 + step).clamp(max=last))
                x, residual = self.enter(self._embedded(fed), carried)
                keys, values = attention.keys_values(x, rows + step)
                seen.own_keys.append(keys)
                seen.own_values.append(values)
            g = self.layer.finish(residual, attention(x, rows + step, seen))
            carried, scores = self.leave(g)
            logits.append(scores)
        return logits

    def _embedded(self, token_ids: Tensor) -> Tensor:
        return nn.functional.embedding(token_ids, self.get_buffer("embedding"))

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """[B, P, F] → [B, P, d] hidden states as `enter` takes them."""
        ...

    @abstractmethod
    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[…, d] twice → attention's input, and what the residual stream starts from."""
        ...

    @abstractmethod
    def leave(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output […, d] → the hidden state to carry on, and logits […, Vd]."""
        ...

    @abstractmethod
    def published(self) -> dict[str, Tensor]:
        """All weights by the names of the published layout."""
        ...


class MtpEagleHead(TrainedHead):
    """DeepSeek-V3's module (2024, section 2.2), used again and again; see drafters on FR-Spec.

    Its output table is the target's, of which only the rows of `kept_ids` are used: they stay as
    they are and need not be stored (FR-Spec, Zhao et al. 2025).
    """

    def __init__(self, target: TargetWeights, kept_ids: Tensor) -> None:
        super().__init__(target, kept_ids)
        config = target.config
        d, eps = config.hidden_size, config.rms_eps
        self.register_buffer("table", target.head[kept_ids], persistent=False)
        self._normed = target.normed
        self.enorm, self.hnorm = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.eh_proj = nn.Linear(2 * d, d, bias=False)
        self.layer = DraftLayer(config, d)
        self.norm = nn.RMSNorm(d, eps)
        with torch.no_grad():
            self.layer.take(target.last_layer)
            self.norm.weight.copy_(target.norm)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states: the tap is before its final norm, what is served behind."""
        return self._normed(features)

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See TrainedHead."""
        u = self.eh_proj(self.pair(embedded, hidden))
        return self.layer.input_layernorm(u), u

    def pair(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """[…, 2d], what `eh_proj` reads."""
        return torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1)

    def leave(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """See TrainedHead; carried behind the norm."""
        carried = self.norm(g)
        return carried, carried @ self.get_buffer("table").T

    def published(self) -> dict[str, Tensor]:
        """As one exported layer of a DeepSeek checkpoint."""
        names = {"norm.weight": "shared_head.norm.weight"}
        return {
            f"model.layers.0.{names.get(name, name.removeprefix('layer.'))}": weight
            for name, weight in self.state_dict().items()
        }


class Eagle3Head(TrainedHead):
    """EAGLE-3 (Li et al. 2025, section 3.1): taps fused, attention sees token and hidden state."""

    def __init__(self, target: TargetWeights, kept_ids: Tensor, taps: int) -> None:
        super().__init__(target, kept_ids)
        config = target.config
        d, eps = config.hidden_size, config.rms_eps
        self.fc = nn.Linear(taps * d, d, bias=False)
        self.layer = DraftLayer(config, 2 * d)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.norm = nn.RMSNorm(d, eps)
        self.lm_head = nn.Linear(d, len(kept_ids), bias=False)
        with torch.no_grad():
            self.layer.take(target.last_layer)
            self.layer.input_layernorm.weight.fill_(1.0)
            self.hidden_norm.weight.copy_(target.last_layer["input_layernorm.weight"])
            self.norm.weight.copy_(target.norm)
            self.lm_head.weight.copy_(target.head[kept_ids])
            self.fc.weight.zero_()
            self.fc.weight[:, -d:].fill_diagonal_(1.0)

    def fuse(self, features: Tensor) -> Tensor:
        """The taps side by side become one."""
        fused: Tensor = self.fc(features)
        return fused

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See TrainedHead."""
        both = [self.layer.input_layernorm(embedded), self.hidden_norm(hidden)]
        return torch.cat(both, dim=-1), hidden

    def leave(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """See TrainedHead; carried before the norm."""
        return g, self.lm_head(self.norm(g))

    def published(self) -> dict[str, Tensor]:
        """As the reference's checkpoints."""
        names = {"hidden_norm.weight": "midlayer.hidden_norm.weight"}
        return {
            names.get(name, name.replace("layer.", "midlayer.", 1)): weight
            for name, weight in self.state_dict().items()
        }


def _gathered(x: Tensor, rows: Tensor) -> Tensor:
    """[B, P, d], [B, A] → [B, A, d]"""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))
