"""Tiny block drafters that can be trained: their arithmetic over all anchors of a text at once.

For heads that know a few texts by heart; the product trains no block drafters. Drafts are taught
the text's own tokens, then the confidence head, if there is one, what became of them.

Letters: T tokens of a text, A anchors, r rows of a block, d drafts, h hidden size, V vocabulary,
H key heads, G queries of each, D a head's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.tiny_block_drafters import (
    BLOCK,
    EPS,
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    MASK_ID,
    THETA,
    TinyBlock,
)

_STEPS, _RATE = 60, 1e-2
_CONFIDENCE_STEPS, _CONFIDENCE_RATE = 200, 5e-2


@dataclass(frozen=True)
class KnownText:
    """A text that the target wrote."""

    token_ids: Tensor
    """[T] int64"""
    features: Tensor
    """[T − 1, F] of the target, at the drafter's taps"""
    prompt_tokens: int

    @property
    def anchors(self) -> Tensor:
        """[A] places behind which an answer's token is drafted."""
        return torch.arange(self.prompt_tokens, len(self.token_ids) - 1)


@dataclass(frozen=True)
class TrainedBlock(TinyBlock):
    """One with weights that are not by chance."""

    trained: Mapping[str, Tensor] = field(default_factory=dict)

    def weights(self) -> dict[str, Tensor]:
        """Under z-lab's names."""
        return dict(self.trained)


def memorise(
    tiny: TinyBlock,
    embedding: Tensor,
    texts: Sequence[KnownText],
    strangers: Sequence[KnownText] = (),
) -> TrainedBlock:
    """A drafter of the layout of `tiny` that knows `texts` by heart.

    embedding: [V, h], the target's, which is its output table too. strangers: texts that it does
    not know, from which it learns what not to be sure of.
    """
    block = _Trainable(tiny, embedding)
    _fit(block.body, _STEPS, _RATE, lambda: torch.stack([*map(block.loss, texts)]).mean())
    if tiny.confidence:
        with torch.no_grad():
            seen, held = map(
                torch.cat, zip(*map(block.outcomes, [*texts, *strangers]), strict=True)
            )
        _fit(block.judge, _CONFIDENCE_STEPS, _CONFIDENCE_RATE, lambda: block.doubt(seen, held))
    known = {each.name: getattr(tiny, each.name) for each in fields(TinyBlock)}
    trained = {name: weight.detach() for name, weight in block.weights.items()}
    return TrainedBlock(**known, trained=trained)


def _fit(weights: Sequence[Tensor], steps: int, rate: float, loss: Callable[[], Tensor]) -> None:
    """Descend by Adam, the rate falling to nothing."""
    optimiser = torch.optim.Adam(weights, lr=rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


class _Trainable:
    """A block drafter's weights, and what they give."""

    def __init__(self, tiny: TinyBlock, embedding: Tensor) -> None:
        self._tiny, self._embedding = tiny, embedding
        self.weights = {name: each.requires_grad_() for name, each in tiny.weights().items()}
        judge = {name for name in self.weights if name.startswith("confidence_head.")}
        self.judge = [self.weights[name] for name in sorted(judge)]
        self.body = [each for name, each in self.weights.items() if name not in judge]

    def loss(self, text: KnownText) -> Tensor:
        """Of the drafts behind all anchors; those behind the text's end do not count."""
        labels, there = self._labels(text)
        logits = self._logits(self._drafting(text), self._before(text))
        return F.cross_entropy(logits[there], labels[there])

    def outcomes(self, text: KnownText) -> tuple[Tensor, Tensor]:
        """What the confidence head sees of every draft [N, h + r], and which held [N]: it is told
        of those before which all others held, as it will be asked."""
        labels, there = self._labels(text)
        hidden, before = self._drafting(text), self._before(text)
        right = self._logits(hidden, before).argmax(-1) == labels
        reached = torch.cat([torch.ones_like(right[:, :1]), right[:, :-1]], 1).cumprod(1).bool()
        seen = torch.cat([hidden, self.weights["markov_head.markov_w1.weight"][before]], -1)
        return seen[there & reached], right[there & reached].float()

    def doubt(self, seen: Tensor, held: Tensor) -> Tensor:
        """The loss of the confidence head."""
        weight, bias = (self.weights[f"confidence_head.proj.{n}"] for n in ("weight", "bias"))
        return F.binary_cross_entropy_with_logits((seen @ weight.T).squeeze(1) + bias, held)

    def _labels(self, text: KnownText) -> tuple[Tensor, Tensor]:
        """[A, d] the tokens that should be drafted, and whether there are any."""
        place = text.anchors[:, None] + 1 + torch.arange(self._tiny.drafts)
        last = len(text.token_ids) - 1
        return text.token_ids[place.clamp(max=last)], place <= last

    def _before(self, text: KnownText) -> Tensor:
        """[A, d] the token before each draft."""
        place = text.anchors[:, None] + torch.arange(self._tiny.drafts)
        return text.token_ids[place.clamp(max=len(text.token_ids) - 1)]

    def _logits(self, hidden: Tensor, before: Tensor) -> Tensor:
        """[A, d, V], corrected by the token before (vanilla)."""
        logits = hidden @ self._embedding.T
        if not self._tiny.markov:
            return logits
        first, second = (self.weights[f"markov_head.markov_w{n}.weight"] for n in (1, 2))
        return logits + first[before] @ second.T

    def _drafting(self, text: KnownText) -> Tensor:
        """[A, d, h] of the rows that draft."""
        first = 0 if self._tiny.from_anchor else 1
        return self._hidden(text)[:, first:]

    def _hidden(self, text: KnownText) -> Tensor:
        """[A, r, h], blocks behind all anchors."""
        w, anchors = self.weights, text.anchors
        context = _norm(text.features @ w["fc.weight"].T, w["hidden_norm.weight"])
        ids = torch.full((len(anchors), BLOCK), MASK_ID)
        ids[:, 0] = text.token_ids[anchors]
        x, rows = self._embedding[ids], anchors[:, None] + torch.arange(BLOCK)
        for layer in range(LAYERS):
            start = f"layers.{layer}."
            own = {n.removeprefix(start): t for n, t in w.items() if n.startswith(start)}
            x = x + _attend(own, _norm(x, own["input_layernorm.weight"]), context, rows)
            normed = _norm(x, own["post_attention_layernorm.weight"])
            gate, up = (normed @ own[f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ own["mlp.down_proj.weight"].T
        return _norm(x, w["norm.weight"])


def _attend(own: Mapping[str, Tensor], x: Tensor, context: Tensor, rows: Tensor) -> Tensor:
    """x [A, r, h] at positions rows [A, r], which see the context before their anchor and their
    whole block → [A, r, h]."""
    places = torch.arange(len(context))
    query = _heads(own, "q", x, rows).unflatten(2, (KV_HEADS, -1))  # [A, r, H, G, D]
    far = torch.einsum("arkgd,tkd->arkgt", query, _heads(own, "k", context, places))
    unseen = (places >= rows[:, :1])[:, None, None, None]
    near = torch.einsum("arkgd,askd->arkgs", query, _heads(own, "k", x, rows))
    scores = torch.cat([far.masked_fill(unseen, float("-inf")), near], -1)
    share = (scores * HEAD_DIM**-0.5).softmax(-1)
    far, near = share.split([len(context), BLOCK], -1)
    mixed = torch.einsum("arkgt,tkd->arkgd", far, _values(own, context))
    mixed = mixed + torch.einsum("arkgs,askd->arkgd", near, _values(own, x))
    out: Tensor = mixed.flatten(2) @ own["self_attn.o_proj.weight"].T
    return out


def _heads(own: Mapping[str, Tensor], name: str, x: Tensor, positions: Tensor) -> Tensor:
    """[…, h] → normed and turned […, heads, D]"""
    whole = (x @ own[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM))
    normed = _norm(whole, own[f"self_attn.{name}_norm.weight"])
    angles = positions[..., None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (torch.cat([f, f], -1)[..., None, :] for f in (angles.cos(), angles.sin()))
    first, second = normed.chunk(2, -1)
    turned: Tensor = normed * cos + torch.cat([-second, first], -1) * sin
    return turned


def _values(own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    values: Tensor = (x @ own["self_attn.v_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM))
    return values


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    normed: Tensor = F.rms_norm(x, weight.shape, weight, EPS)
    return normed
