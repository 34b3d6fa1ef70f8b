"""From logits to tokens: the same result for a row wherever, and with whomever, it is drawn.

Knows: temperature, top-k, top-p, and the fixed noise that sampling is coupled to.
Does not know: requests, drafts, models. Everything is a pure function of logits and columns.

Order of the chain: temperature, then top-k, then top-p over what top-k kept, renormalised.
Ties are broken everywhere by the lower token id.

A token is drawn by an exponential race among the survivors: the winner has the greatest p/E with
E = −log(1 − u) exponential noise, which is a draw from p. Noise depends on (seed, choice, index,
token) alone, so any draft that is checked against the target's own draw meets the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.philox import uniform, uniform_of_all

_CANDIDATES = 1024
"""Tokens looked at before a whole vocabulary is sorted; nearly always enough for top-p."""


@dataclass(frozen=True)
class SamplingTable:
    """How each of R rows draws its token."""

    temperature: Tensor
    """[R] float32; 0 is greedy."""
    top_k: Tensor
    """[R] int64; 0 is off."""
    top_p: Tensor
    """[R] float32; 1 is off."""
    seed: Tensor
    """[R] int64"""
    choice: Tensor
    """[R] int64, which of a request's parallel answers this is."""
    index: Tensor
    """[R] int64, the token's index counted from the end of the original prompt."""

    def take(self, rows: Tensor) -> SamplingTable:
        """The table of `rows` [M] int64."""
        return SamplingTable(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            seed=self.seed[rows],
            choice=self.choice[rows],
            index=self.index[rows],
        )


def sample(logits: Tensor, table: SamplingTable) -> Tensor:
    """logits [R, V] float32 → tokens [R] int64.

    Greedy rows take the highest logit, at a tie the lowest id. A row's token depends on its own
    logits and its own entries of the table only.
    """
    tokens = logits.argmax(-1)
    filtered = (table.top_k > 0) | (table.top_p < 1)
    drawn = table.temperature > 0
    for rows, draw in ((drawn & filtered, _draw_filtered), (drawn & ~filtered, _draw_any)):
        chosen = rows.nonzero().squeeze(1)
        if chosen.numel():
            values = draw(logits.index_select(0, chosen), table.take(chosen))
            tokens = tokens.index_copy(0, chosen, values)
    return tokens


def _draw_any(logits: Tensor, table: SamplingTable) -> Tensor:
    """[M, V] → [M]: a draw among all tokens."""
    noise = uniform_of_all(logits.shape[1], table.seed, table.choice, table.index)
    return _race(_scaled(logits, table), noise)


def _draw_filtered(logits: Tensor, table: SamplingTable) -> Tensor:
    """[M, V] → [M]: a draw among the tokens that top-k and top-p keep.

    Looks at the best `_CANDIDATES` first. Where those cannot settle what is kept, all are sorted.
    """
    vocabulary = logits.shape[1]
    count = min(_CANDIDATES, vocabulary)
    probabilities = _scaled(logits, table).softmax(-1)
    ids = _best(logits, count)
    scores, settled = _survivors(logits, probabilities, ids, table)
    noise = uniform(ids, table.seed, table.choice, table.index)
    tokens = _race(scores, noise, ids)
    rest = (~settled).nonzero().squeeze(1)
    if rest.numel():
        tokens[rest] = _draw_sorted(logits[rest], probabilities[rest], table.take(rest))
    return tokens


def _draw_sorted(logits: Tensor, probabilities: Tensor, table: SamplingTable) -> Tensor:
    """The same with all tokens as candidates."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices
    scores, _ = _survivors(logits, probabilities, ids, table)
    noise = uniform_of_all(logits.shape[1], table.seed, table.choice, table.index)
    return _race(scores, noise.gather(1, ids), ids)


def _best(logits: Tensor, count: int) -> Tensor:
    """[M, V] → [M, count] ids of the highest logits, ordered by (logit, lower id first)."""
    ids = logits.topk(count, -1).indices.sort(-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)


def _survivors(
    logits: Tensor, probabilities: Tensor, ids: Tensor, table: SamplingTable
) -> tuple[Tensor, Tensor]:
    """Scores of candidates `ids` [M, C], −inf where filtered out, and which rows are settled.

    A row is settled when its survivors would be the same had all tokens been candidates: the last
    survivor lies above the last candidate, so neither the cut nor a tie at the edge is open.
    """
    count = ids.shape[1]
    rank = torch.arange(count, device=ids.device)
    limit = torch.where(table.top_k > 0, table.top_k, probabilities.shape[1])[:, None]
    kept = rank < limit
    mass = probabilities.gather(1, ids).masked_fill_(~kept, 0.0)
    cumulative = mass.cumsum(-1)
    total = torch.where(table.top_k[:, None] > 0, cumulative[:, -1:], 1.0)
    before = cumulative - mass
    kept &= (before < table.top_p[:, None].double() * total) | (rank == 0)
    values = logits.gather(1, ids)
    last = values.gather(1, kept.sum(-1, keepdim=True) - 1)
    settled = ((last > values[:, -1:]) & (table.top_k[:, None] <= count)).squeeze(1)
    if count == logits.shape[1]:
        settled = torch.ones_like(settled)
    scores = _scaled(values, table).masked_fill_(~kept, float("-inf"))
    return scores, settled


def _scaled(logits: Tensor, table: SamplingTable) -> Tensor:
    return logits.double() / table.temperature[:, None].double()


def _race(scores: Tensor, u: Tensor, ids: Tensor | None = None) -> Tensor:
    """scores [M, C] float64 log-weights, −inf where out; u [M, C] uniform → winners [M].

    argmax p/E is taken as argmax log p − log E, which needs no normalisation and never underflows.
    ids [M, C] name the columns; without them a column is its own token.
    """
    log_noise = torch.log1p(u.neg_()).neg_().log_()
    winner = (scores - log_noise).argmax(-1)
    return winner if ids is None else ids.gather(1, winner.unsqueeze(1)).squeeze(1)
