"""From adjusted logits to a token: temperature, filters, and a race with fixed noise.

Order: temperature, then min-p, then top-k, then top-p over what those two kept, renormalised. In
all of them tokens are ordered by logit and, at a tie, lower id first.

A token is drawn by an exponential race among the survivors: the winner has the greatest p/E with
E = −log(1 − u) exponential noise, which is a draw from p. Noise depends on (seed, choice, index,
token) alone, so any draft that is checked against the target's own draw meets the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from outrider_worker.philox import uniform, uniform_of_all
from outrider_worker.sampling.rank import ranked
from outrider_worker.sampling.stages import Stages

_GREEDY_BLOCK, _LEAST_GREEDY_BLOCK = 512, 64

_CANDIDATES = 1024
"""Tokens looked at before a whole vocabulary is sorted; nearly always enough for top-p."""


@dataclass(frozen=True)
class DrawColumns:
    """How each of R rows draws its token."""

    temperature: Tensor
    """[R] float32; 0 is greedy."""
    top_k: Tensor
    """[R] int64; 0 is off."""
    top_p: Tensor
    """[R] float32; 1 is off."""
    min_p: Tensor
    """[R] float32, of the highest probability; 0 is off."""
    seed: Tensor
    """[R] int64"""
    choice: Tensor
    """[R] int64, which of a request's parallel answers this is."""
    index: Tensor
    """[R] int64, the token's index counted from the end of the original prompt."""

    def take(self, rows: Tensor | slice) -> DrawColumns:
        """The columns of `rows` [M] int64."""
        return DrawColumns(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seed=self.seed[rows],
            choice=self.choice[rows],
            index=self.index[rows],
        )

    @property
    def draws(self) -> Tensor:
        """[R] bool"""
        return self.temperature > 0

    @property
    def filters(self) -> Tensor:
        """[R] bool"""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)


def draw(logits: Tensor, columns: DrawColumns, stages: Stages, sparse: bool) -> Tensor:
    """logits [R, V] float32 → tokens [R] int64.

    Greedy rows take the highest logit, at a tie the lowest id. A row's token depends on its own
    logits and its own entries of the columns only: `stages` and `sparse` say what has to be looked
    at and how, and change no token.
    """
    tokens = _greedy(logits)
    if Stages.DRAW not in stages:
        return tokens
    if not sparse:
        drawn = _draw_sorted if Stages.FILTER in stages else _draw_any
        return torch.where(columns.draws, drawn(logits, columns), tokens)
    free, filtered = columns.draws & ~columns.filters, columns.draws & columns.filters
    for rows, drawn in ((free, _draw_any), (filtered, _draw_filtered)):
        chosen = rows.nonzero().squeeze(1)
        if chosen.numel():
            values = drawn(logits.index_select(0, chosen), columns.take(chosen))
            tokens.index_copy_(0, chosen, values)
    return tokens


def _greedy(logits: Tensor) -> Tensor:
    """[R, V] → [R] the highest logit, the lowest id at a tie.

    First the best block, then the best within it: on CPUs seven times as fast as one argmax.
    """
    rows, vocabulary = logits.shape
    block = gcd(vocabulary, _GREEDY_BLOCK)
    if block < _LEAST_GREEDY_BLOCK:
        return logits.argmax(-1)
    blocks = logits.view(rows, vocabulary // block, block)
    best = blocks.amax(-1).argmax(-1)
    within = blocks[torch.arange(rows, device=logits.device), best].argmax(-1)
    return best * block + within


def _draw_any(logits: Tensor, columns: DrawColumns) -> Tensor:
    """[M, V] → [M]: a draw among all tokens."""
    noise = uniform_of_all(logits.shape[1], columns.seed, columns.choice, columns.index)
    return _race(_scaled(logits, columns), noise)


def _draw_filtered(logits: Tensor, columns: DrawColumns) -> Tensor:
    """[M, V] → [M]: a draw among the tokens that the filters keep.

    Looks at the best `_CANDIDATES` first. Where those cannot settle what is kept, all are sorted.
    """
    probabilities = _scaled(logits, columns).softmax(-1)
    ids = ranked(logits, min(_CANDIDATES, logits.shape[1]))
    scores, settled = _survivors(logits, probabilities, ids, columns)
    tokens = _race(scores, uniform(ids, columns.seed, columns.choice, columns.index), ids)
    rest = (~settled).nonzero().squeeze(1)
    if rest.numel():
        tokens[rest] = _draw_sorted(logits[rest], columns.take(rest))
    return tokens


def _draw_sorted(logits: Tensor, columns: DrawColumns) -> Tensor:
    """The same with all tokens as candidates; rows without filters keep them all."""
    probabilities = _scaled(logits, columns).softmax(-1)
    ids = ranked(logits, logits.shape[1])
    scores, _ = _survivors(logits, probabilities, ids, columns)
    noise = uniform_of_all(logits.shape[1], columns.seed, columns.choice, columns.index)
    return _race(scores, noise.gather(1, ids), ids)


def _survivors(
    logits: Tensor, probabilities: Tensor, ids: Tensor, columns: DrawColumns
) -> tuple[Tensor, Tensor]:
    """Scores of candidates `ids` [M, C], −inf where filtered out, and which rows are settled.

    Candidates are the C best in order, and every filter keeps the first so many of them. A row is
    settled when its survivors would be the same had all tokens been candidates.
    """
    count, vocabulary = ids.shape[1], probabilities.shape[1]
    rank = torch.arange(count, device=ids.device)
    mass = probabilities.gather(1, ids)
    limit = torch.where(columns.top_k > 0, columns.top_k, vocabulary).clamp(max=vocabulary)
    likely = mass >= columns.min_p[:, None].double() * mass[:, :1]
    kept = likely & (rank < limit[:, None])
    cut_inside = (limit <= count) | ~likely[:, -1]
    mass = mass.masked_fill_(~kept, 0.0)
    cumulative = mass.cumsum(-1)
    cuts = (columns.top_k > 0) | (columns.min_p > 0)
    total = torch.where(cuts[:, None], cumulative[:, -1:], 1.0)
    top_p = columns.top_p[:, None].double()
    kept &= (cumulative - mass < top_p * total) | (top_p >= 1) | (rank == 0)
    settled = cut_inside | (~cuts & ~kept[:, -1])
    scores = _scaled(logits.gather(1, ids), columns).masked_fill_(~kept, float("-inf"))
    return scores, settled


def _scaled(logits: Tensor, columns: DrawColumns) -> Tensor:
    """[M, V] float64; greedy rows, whose draw nobody uses, keep their logits."""
    temperature = torch.where(columns.draws, columns.temperature, 1.0)
    return logits.double() / temperature[:, None].double()


def _race(scores: Tensor, u: Tensor, ids: Tensor | None = None) -> Tensor:
    """scores [M, C] float64 log-weights, −inf where out; u [M, C] uniform → winners [M].

    argmax p/E is taken as argmax log p − log E, which needs no normalisation and never underflows.
    ids [M, C] name the columns; without them a column is its own token.
    """
    log_noise = torch.log1p(u.neg_()).neg_().log_()
    winner = (scores - log_noise).argmax(-1)
    return winner if ids is None else ids.gather(1, winner.unsqueeze(1)).squeeze(1)
