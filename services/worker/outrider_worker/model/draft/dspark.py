"""DSpark's heads: a correction of each draft's logits by the token before it, and a confidence.

Knows: the three published forms of the correction, the calibration of the confidence.
Does not know: the block they follow (dflash), how a draft is drawn.

Source: DSpark (arXiv 2607.05147), sections 3 and 4; deepseek-ai/DeepSpec.

Letters: n requests, d hidden size, r the Markov head's rank, V the target's tokens, Vd the
drafter's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from outrider_worker.linear import Linear
from outrider_worker.model.config import ModelError
from outrider_worker.model.config_json import read_json
from outrider_worker.model.draft.block_config import BlockHeads
from outrider_worker.model.shapes import Shape, Shapes, linear_shapes
from outrider_worker.model.weights import Weights, linear

CALIBRATION_FILE = "calibration.json"
"""Beside the weights: {"temperatures": [one for each draft]}; other entries are comments."""

Mixer = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(hidden [n, d], embedding [n, r], state [n, r]) → (latent [n, r], next state [n, r])."""


class MarkovHead:
    """p_k ∝ exp(U_k + W2·latent), the latent being made of W1[x_{k−1}] in one of three ways."""

    def __init__(
        self, embedding: Tensor, output: Linear, mixer: Mixer, kept_ids: Tensor | None = None
    ) -> None:
        """kept_ids: [Vd] int64, the target's token of each output; None: the same ids."""
        self._embedding, self._output, self._mix = embedding, output, mixer
        self._kept_ids = kept_ids

    def embed(self, token_ids: Tensor) -> Tensor:
        """The tokens before, ids of the target [n] → W1[x] [n, r]."""
        return self._embedding.index_select(0, token_ids)

    def first_state(self, requests: int) -> Tensor:
        """[n, r] before the first draft of a block."""
        return self._embedding.new_zeros(requests, self._embedding.shape[1])

    def bias(self, hidden: Tensor, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to logits [n, V], in float32, and the state for the next draft."""
        latent, after = self._mix(hidden, embedding, state)
        found = self._output(latent).float()
        if self._kept_ids is None:
            return found, after
        whole = found.new_zeros(len(found), len(self._embedding))
        return whole.index_copy_(1, self._kept_ids, found), after


class ConfidenceHead:
    """c_k = σ(w·[h_k; W1[x_{k−1}]] / T_k): that draft k is accepted if those before it are.

    It sees the token before, not the draft itself, so a cut by it leaves the law of the text alone
    (drafters' rule: {length ≥ k} must be known without x_k).
    """

    def __init__(
        self, projection: Linear, with_markov: bool, temperatures: Sequence[float] | None
    ) -> None:
        """temperatures: one for each draft of a block; None: not calibrated."""
        self._projection, self.with_markov = projection, with_markov
        self._temperatures = temperatures

    def __call__(self, hidden: Tensor, embedding: Tensor | None, step: int) -> Tensor:
        """hidden [n, d], embedding [n, r] → [n] float32, of draft number `step`."""
        seen = hidden
        if self.with_markov:
            assert embedding is not None, "a confidence head that reads a Markov head has one"
            seen = torch.cat([hidden, embedding], dim=1)
        logit = self._projection(seen).squeeze(1).float()
        return sigmoid(logit if self._temperatures is None else logit / self._temperatures[step])


def read_markov_head(
    heads: BlockHeads, weights: Weights, kept_ids: Tensor | None
) -> MarkovHead | None:
    """The Markov head of a checkpoint, None where it has none; kept_ids as there."""
    if not heads.markov_rank:
        return None
    return MarkovHead(
        weights("markov_head.markov_w1.weight"),
        linear(weights, "markov_head.markov_w2"),
        _MIXERS[heads.markov_kind](weights),
        kept_ids,
    )


def read_confidence_head(
    heads: BlockHeads, weights: Weights, temperatures: Sequence[float] | None
) -> ConfidenceHead | None:
    """The confidence head of a checkpoint, None where it has none."""
    if not heads.confidence:
        return None
    projection = linear(weights, "confidence_head.proj", bias=True)
    return ConfidenceHead(projection, heads.confidence_with_markov, temperatures)


def read_temperatures(folder: Path, drafts: int) -> tuple[float, ...] | None:
    """The calibration that lies in `folder`, None without one.

    Sequential temperature scaling: T_k is fitted with those before it fixed, so a file is good for
    one length of block only. Raises ModelError for anything but `drafts` positive numbers.
    """
    path = folder / CALIBRATION_FILE
    if not path.is_file():
        return None
    found = read_json(path).get("temperatures")
    good = isinstance(found, list) and all(type(t) in (int, float) and t > 0 for t in found)
    if not isinstance(found, list) or not good or len(found) != drafts:
        raise ModelError(f"{path} must list {drafts} positive temperatures, not {found!r}")
    return tuple(float(each) for each in found)


def head_shapes(
    heads: BlockHeads, hidden: int, vocab: int, draft_vocab: int
) -> Mapping[str, Shape]:
    """Name and shape of every tensor of the heads. d, V and Vd as above."""
    return dict(_head_shapes(heads, hidden, vocab, draft_vocab))


def _head_shapes(heads: BlockHeads, hidden: int, vocab: int, draft_vocab: int) -> Shapes:
    rank = heads.markov_rank
    if rank:
        yield "markov_head.markov_w1.weight", (vocab, rank)
        yield "markov_head.markov_w2.weight", (draft_vocab, rank)
    if rank and heads.markov_kind == "gated":
        yield from linear_shapes("markov_head.gate_proj", rank, hidden + rank, True)
    if rank and heads.markov_kind == "rnn":
        yield from linear_shapes("markov_head.joint_proj", 3 * rank, 2 * rank + hidden, True)
    if heads.confidence:
        width = hidden + (rank if heads.confidence_with_markov else 0)
        yield from linear_shapes("confidence_head.proj", 1, width, True)


def _vanilla(weights: Weights) -> Mixer:
    """The embedding itself."""
    return lambda hidden, embedding, state: (embedding, state)


def _gated(weights: Weights) -> Mixer:
    """The embedding through a gate that sees the row: σ(G[h; e]) · e."""
    gate = linear(weights, "markov_head.gate_proj", bias=True)

    def mix(hidden: Tensor, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return sigmoid(gate(torch.cat([hidden, embedding], dim=1))) * embedding, state

    return mix


def _recurrent(weights: Weights) -> Mixer:
    """A state that remembers the drafts before: [gate, candidate, output] = J[s; e; h]."""
    joint = linear(weights, "markov_head.joint_proj", bias=True)

    def mix(hidden: Tensor, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate, output = joint(torch.cat([state, embedding, hidden], dim=1)).chunk(3, 1)
        kept = sigmoid(gate)
        return tanh(output), kept * state + (1 - kept) * tanh(candidate)

    return mix


_MIXERS: Mapping[str, Callable[[Weights], Mixer]] = {
    "vanilla": _vanilla,
    "gated": _gated,
    "rnn": _recurrent,
}


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(−x)), of the same bits wherever an element lies (see model.layers)."""
    return x.neg().exp_().add_(1.0).reciprocal_()


def tanh(x: Tensor) -> Tensor:
    """2σ(2x) − 1, likewise."""
    return sigmoid(2 * x).mul_(2.0).sub_(1.0)
